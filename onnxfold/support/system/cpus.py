"""The system, and the number, features and levels of its CPUs."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from pathlib import Path

IS_LINUX = sys.platform == "linux"

CPU_LEVELS = {
    "x86-64": (),
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
"""Micro-architecture levels of x86-64, with the features that each level adds.

The features have Linux's names. The levels are those of the System V psABI. Compilers accept these
levels as names of CPUs.
"""


def processors() -> int:
    """Return the number of processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    if sys.platform == "win32":
        import psutil

        return len(psutil.Process().cpu_affinity())
    return os.cpu_count() or 1  # macOS has no affinity


def system_and_machine() -> str:
    """Return the name of the system and the architecture, such as ``linux-x86_64``."""
    return f"{sys.platform}-{platform.machine()}"


def system_description() -> str:
    """Return the name and version of the system, for bug reports."""
    return platform.platform()


@functools.cache
def cpu_features() -> str:
    """Return the architecture and a hash of the CPU's features, joined by a hyphen.

    If the features are unknown, the hash is that of the name of the CPU's model.
    """
    features = " ".join(sorted(_cpu_flags())) or _cpu_model()
    digest = hashlib.sha256(features.encode()).hexdigest()[:16]
    return f"{platform.machine()}-{digest}"


@functools.cache
def cpu_levels() -> tuple[str, ...]:
    """Return the levels in `CPU_LEVELS` that this CPU is known to have, in ascending order.

    Outside of Linux, no features are known, so only the first level is returned on x86-64. On other
    architectures, the result is empty.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    flags = _cpu_flags()
    levels: list[str] = []
    for level, features in CPU_LEVELS.items():
        if not flags.issuperset(features):
            break
        levels.append(level)
    return tuple(levels)


def _cpu_flags() -> frozenset[str]:
    """Return Linux's names of the CPU's features. On other systems, the set is empty."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def _cpu_model() -> str:
    """Return the name of the CPU's model.

    On macOS, `platform.processor` returns only the family, so the result of sysctl is preferred.
    """
    if sys.platform == "darwin":
        import subprocess

        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        if completed.stdout.strip():
            return completed.stdout.strip()
    return platform.processor()
