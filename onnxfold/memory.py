"""The memory and processors of this process and of the machine, and when garbage is collected."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """A large graph makes millions of objects, all of them in use: there is nothing to collect."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def peak_rss_bytes() -> int | None:
    """Peak resident set size of this process in bytes, or None where the system does not tell."""
    peak = _from_proc_status()
    return peak if peak is not None else _from_resource()


def rss_bytes() -> int | None:
    """Resident set size of this process now, bytes; where the system does not tell, its peak."""
    now = _from_proc_status("VmRSS:")
    return now if now is not None else _from_resource()


def _from_proc_status(key: str = "VmHWM:") -> int | None:
    """A line of /proc/self/status: unlike getrusage it is not inherited through exec."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith(key):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _from_resource() -> int | None:
    """ru_maxrss of getrusage: bytes on macOS, KiB elsewhere; absent on Windows."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def give_back_freed() -> None:
    """Give memory that was freed back to the system, where the C library keeps some of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def memory_of_the_machine() -> int:
    """Bytes of main memory; a terabyte where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 1 << 40


def available_memory() -> int:
    """Bytes of memory that are free, or the system would free; a terabyte where it does not say."""
    free = memory_of_the_machine()
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as lines:
        free = sum(int(n.split()[1]) << 10 for n in lines if n.startswith("MemAvailable:")) or free
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return free


def processors() -> int:
    """The number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
