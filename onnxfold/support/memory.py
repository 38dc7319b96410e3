"""Memory and processors of this process and the machine, and garbage collection."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CPU_LEVELS = {
    "x86-64": (),
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
"""Micro-architecture levels of x86-64, with the features that each adds, by Linux's names.

The levels are those of the System V psABI, which compilers accept as names of CPUs.
"""


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: the millions of objects of a large graph are all in use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def peak_rss_bytes() -> int:
    """Return the peak resident set size in bytes; that of getrusage is inherited through exec."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def rss_bytes() -> int:
    """Return the resident set size of this process in bytes."""
    import psutil  # `onnxfold --help` works without it

    return int(psutil.Process().memory_info().rss)


def c_library() -> Any:
    """Return the C library that this process has loaded."""
    return ctypes.CDLL(None)


trims: list[Callable[[], None]] = []
"""Functions that return freed memory to the system which other allocators keep."""


def give_back_freed() -> None:
    """Return freed memory to the system where the C library, or another one, keeps some of it."""
    for trim in trims:
        trim()
    trim_heap()


def trim_heap() -> None:
    """Return freed memory to the system where the C library keeps some of it."""
    if hasattr(c_library(), "malloc_trim"):
        c_library().malloc_trim(0)


@functools.cache
def memory_of_the_machine() -> int:
    """Return the bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def allocatable_memory() -> int:
    """Return the bytes of main memory, or what the limits of this process leave of them."""
    most = memory_of_the_machine()
    for limit, field in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY and sys.platform == "linux":
            pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[field]
            most = min(most, soft - int(pages) * resource.getpagesize())
    return most


def available_memory() -> int:
    """Return the bytes of memory that are free, or can be freed, within a container's limit."""
    import psutil

    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        free = min(free, limit - int((group / "memory.current").read_text(encoding="ascii")))
    return free


def processors() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on all systems
        return os.cpu_count() or 1


@functools.cache
def cpu_features() -> str:
    """Return the architecture, and a hash of the CPU's features."""
    features = " ".join(sorted(_cpu_flags())) or platform.processor()
    digest = hashlib.sha256(features.encode()).hexdigest()[:16]
    return f"{platform.machine()}-{digest}"


@functools.cache
def cpu_levels() -> tuple[str, ...]:
    """Return the levels in `CPU_LEVELS` that this CPU is known to have, the lowest one first."""
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
    """Return the names of features; none where the system is not Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()
