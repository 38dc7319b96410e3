"""Limits of the memory and the CPU time of this process.

Linux limits both, and the memory of each process that this process starts (RLIMIT_DATA). macOS only
limits the CPU time. Windows has no such limits. Where a limit is missing, a thread measures memory
and time several times a second. The thread ends this process if a limit is exceeded (`watched`).
The memory can exceed its limit between two measurements.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxfold.support.system.processes import kill_descendants

if sys.platform == "linux":
    import resource

# Exit codes without a conventional meaning: sysexits.h uses 64 to 78, and shells use 126 and above.
MEMORY_LIMIT_CODE = 113
"""The exit code of a process that `watched` ended because of its memory."""

WATCHED_CPU_CODE = 114
"""The exit code of a process that `watched` ended because of its CPU time."""

if sys.platform == "win32":
    CPU_LIMIT_CODE = WATCHED_CPU_CODE
else:
    CPU_LIMIT_CODE = -signal.SIGPROF
"""The exit code (-n for signal n) of a process that `limited` ended because of its CPU time."""

# Bytes of private memory in addition to a limit, for modules and stacks of threads.
_SLACK = 128 << 20

# Seconds between two measurements of this process. Meanwhile, a thread can allocate and fill about
# 200 MB. A measurement takes about 50 microseconds.
_OWN_INTERVAL = 0.05

# Seconds between two measurements of the processes that this process started. psutil finds these by
# listing all processes of the machine, which takes tens of milliseconds.
_DESCENDANTS_INTERVAL = 1.0


@contextlib.contextmanager
def limited(cpu_seconds: float, memory: int | None) -> Iterator[None]:
    """Limit the CPU time of this process, and the memory of this and each process that it starts.

    If this process exceeds its CPU time, it ends with `CPU_LIMIT_CODE`. On Linux, an allocation
    beyond the memory limit fails. On other systems, this process ends with `MEMORY_LIMIT_CODE`.

    Args:
        cpu_seconds: The CPU seconds that this process may take from now on; 0 for no limit.
        memory: The bytes of private memory in addition to the current memory of this process; None
            for no limit.
    """
    if sys.platform == "win32":
        with watched(cpu_seconds, memory):
            yield
        return
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # SIGPROF kills the process
    try:
        with _limited_memory(memory):
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextlib.contextmanager
def watched(cpu_seconds: float, memory: int | None) -> Iterator[None]:
    """Limit CPU time and memory by a thread, as `limited` does on Windows.

    If the limit of CPU time is exceeded, this process ends with `WATCHED_CPU_CODE`. Code that does
    not release the GIL delays the measurements.
    """
    if not cpu_seconds and memory is None:
        yield
        return
    import psutil

    max_cpu_seconds = time.process_time() + cpu_seconds if cpu_seconds else math.inf
    max_bytes = None
    if memory is not None:
        max_bytes = _private_bytes(psutil.Process()) + _SLACK + memory
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(max_cpu_seconds, max_bytes, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _watch(max_cpu_seconds: float, max_bytes: int | None, done: threading.Event) -> None:
    """End this process and its descendants if one of them exceeds a limit, until ``done`` is set.

    The last measurement is after ``done`` is set. CPU time is measured only for this process.

    Args:
        max_cpu_seconds: The maximum number of CPU seconds since the start of this process.
        max_bytes: The maximum number of private bytes of this process, and of each of its
            descendants; None for no limit.
        done: An event that is set when the limits no longer apply.
    """
    import psutil

    own = psutil.Process()
    next_descendants = time.monotonic() + _DESCENDANTS_INTERVAL
    is_last = False
    while not is_last:
        is_last = done.wait(_OWN_INTERVAL)
        if time.process_time() > max_cpu_seconds:
            _end(WATCHED_CPU_CODE)
        if max_bytes is None:
            continue
        if _private_bytes(own) > max_bytes:
            _end(MEMORY_LIMIT_CODE)
        if time.monotonic() < next_descendants:
            continue
        for process in own.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # the process has ended
                if _private_bytes(process) > max_bytes:
                    _end(MEMORY_LIMIT_CODE)
        next_descendants = time.monotonic() + _DESCENDANTS_INTERVAL


def _private_bytes(process: Any) -> int:
    """Return the bytes of memory of a process, without mapped files as far as possible.

    On Windows, the result is the committed private memory. On Linux, it is the resident memory
    without shared pages. macOS does not report shared pages, so the result includes the resident
    pages of mapped files.
    """
    info = process.memory_info()
    if sys.platform == "win32":
        return int(info.private)
    return int(info.rss - getattr(info, "shared", 0))


def _end(code: int) -> None:
    kill_descendants(0)
    os._exit(code)


if sys.platform == "linux":

    @contextlib.contextmanager
    def _limited_memory(memory: int | None) -> Iterator[None]:
        """Limit the private memory of this process and of each started process by RLIMIT_DATA."""
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = hard
        if memory is not None:
            status = Path("/proc/self/status").read_text(encoding="ascii")
            own = int(status.partition("VmData:")[2].split()[0]) << 10
            limit = own + _SLACK + memory
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))

else:

    def _limited_memory(memory: int | None) -> contextlib.AbstractContextManager[None]:
        """Limit the private memory of this process and of each started process by a thread."""
        return watched(0, memory)
