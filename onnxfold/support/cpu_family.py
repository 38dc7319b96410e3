"""The family of the CPU of this process.

onnxruntime has different code for each family. The results differ if IEEE 754 allows several
results, or if the code computes an approximation.
"""

from __future__ import annotations

import enum
import functools
import platform


class CpuFamily(enum.Enum):
    """A set of CPUs for which onnxruntime computes elementary operations with equal results."""

    X86_64 = "x86-64"
    ARM64 = "arm64"
    OTHER = "other"
    """CPUs that were not tested, so equal results are not assured."""


_MACHINES = {
    "x86_64": CpuFamily.X86_64,
    "amd64": CpuFamily.X86_64,
    "aarch64": CpuFamily.ARM64,
    "arm64": CpuFamily.ARM64,
}
"""Names of machines in lower case. Windows and macOS use other names than Linux."""


@functools.cache
def cpu_family() -> CpuFamily:
    """Return the family of the CPU of this process."""
    return _MACHINES.get(platform.machine().lower(), CpuFamily.OTHER)
