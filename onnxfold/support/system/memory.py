"""The memory of this process and of the machine, and libraries that this process loads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import resource


def peak_rss_bytes() -> int:
    """Return the peak resident set size of this process in bytes."""
    if sys.platform != "win32":
        # this file is preferred to getrusage, whose value is inherited through exec
        with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Linux reports KiB, macOS bytes.
        return peak if sys.platform == "darwin" else peak << 10

    import psutil

    return int(psutil.Process().memory_info().peak_wset)


def rss_bytes() -> int:
    """Return the resident set size of this process in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)


@functools.cache
def memory_of_the_machine() -> int:
    """Return the bytes of the machine's main memory."""
    if sys.platform == "linux":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import psutil

    return int(psutil.virtual_memory().total)


def allocatable_memory() -> int:
    """Return the number of bytes that this process can allocate.

    The number is the size of the main memory, or less if limits of Linux (RLIMIT_AS, RLIMIT_DATA)
    allow this process only fewer further bytes.
    """
    nbytes = memory_of_the_machine()
    if sys.platform == "linux":
        for limit, field in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
            soft, _ = resource.getrlimit(limit)
            if soft != resource.RLIM_INFINITY:
                pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[field]
                nbytes = min(nbytes, soft - int(pages) * resource.getpagesize())
    return nbytes


def available_memory() -> int:
    """Return the bytes of memory that are free or can be freed.

    On Linux, the result is at most the remaining memory of the container of this process.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    if sys.platform == "linux":
        group = Path("/sys/fs/cgroup")
        # outside of a container, the file does not exist; without a limit, it contains no number
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / "memory.max").read_text(encoding="ascii"))
            free = min(free, limit - int((group / "memory.current").read_text(encoding="ascii")))
    return free


def trim_heap() -> None:
    """Return memory that was freed, but that glibc keeps, to the system.

    Nothing is done for other C libraries.
    """
    if sys.platform == "linux":
        library = _c_library()
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)


def memory_comparison() -> Callable[[int, int, int], int]:
    """Return C's ``memcmp`` as a function that compares memory without holding the GIL.

    The arguments of this function are two addresses and the number of bytes. It returns 0 if the
    bytes are equal.
    """
    compare = _c_library().memcmp
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    memcmp: Callable[[int, int, int], int] = compare
    return memcmp


def load_library(path: str) -> Any:
    """Load a shared library.

    On Linux and macOS, all symbols are resolved immediately and hidden from other libraries.

    Raises:
        OSError: The library cannot be loaded.
    """
    if sys.platform == "win32":
        return ctypes.CDLL(path, use_errno=True)
    return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL, use_errno=True)


def unload_library(library: Any) -> None:
    """Unload a library that `load_library` returned. The library must no longer be in use."""
    if sys.platform == "win32":
        from _ctypes import FreeLibrary

        FreeLibrary(library._handle)
    else:
        from _ctypes import dlclose

        dlclose(library._handle)


def _c_library() -> Any:
    """Return the C library: msvcrt on Windows, otherwise the library that this process uses."""
    if sys.platform == "win32":
        return ctypes.CDLL("msvcrt")
    return ctypes.CDLL(None)
