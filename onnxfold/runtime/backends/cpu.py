"""The CPU of this machine: what it has, as far as the system tells, and which level that makes."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from pathlib import Path

_LEVEL = "x86-64-v3"
_LEVEL_FLAGS = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"))
"""What CPUs of that level have, by Linux's names."""


@functools.cache
def cpu_features() -> str:
    """Return the architecture, and a hash of the CPU's features."""
    features = " ".join(sorted(_flags())) or platform.processor()
    digest = hashlib.sha256(features.encode()).hexdigest()[:16]
    return f"{platform.machine()}-{digest}"


@functools.cache
def cpu_level() -> str:
    """Return the third level of x86 if the CPU is known to have it; otherwise nothing."""
    return _LEVEL if platform.machine() == "x86_64" and _flags() >= _LEVEL_FLAGS else ""


def _flags() -> frozenset[str]:
    """Return the names of features; none where the system is not Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()
