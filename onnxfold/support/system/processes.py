"""System-dependent functions for processes: exit codes, groups, priorities and forks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess


# Status codes in Windows' ntstatus.h. `abort` ends a process with 0xC0000409, the code of a stack
# buffer overrun.
_WINDOWS_CRASHES = {
    0xC0000005: "access violation",
    0xC0000017: "out of memory",
    0xC000001D: "illegal instruction",
    0xC0000094: "integer division by zero",
    0xC00000FD: "stack overflow",
    0xC0000135: "a library is missing",
    0xC0000374: "heap corruption",
    0xC0000409: "aborted",
}

_WINDOWS_ERRORS = 0xC0000000
"""The smallest exit code of a crash on Windows. On other systems, exit codes are below 256."""


def is_crash(code: int) -> bool:
    """Return whether an exit code (-n for signal n) is that of a crash or a signal."""
    return code < 0 or code >= _WINDOWS_ERRORS


def exit_description(code: int) -> str:
    """Return a description of the exit code of a process, which is -n for signal n."""
    if code < 0:
        return f"signal {-code}"
    if code < _WINDOWS_ERRORS:
        return f"exit code {code}"
    reason = _WINDOWS_CRASHES.get(code)
    return f"exit code 0x{code:08X}" + (f", {reason}" if reason else "")


def start_group(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that leads its own group of processes.

    Ctrl-C on the terminal of this process does not interrupt the group.

    Args:
        command: The program and its arguments.
        options: Further arguments of `subprocess.Popen`.

    Raises:
        OSError: The program cannot be started.
    """
    import subprocess

    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        return subprocess.Popen(command, creationflags=flags, **options)
    return subprocess.Popen(command, start_new_session=True, **options)


def end_group(leader: int) -> None:
    """Kill the processes of a group, and ignore a group without processes.

    On Windows, these are the descendants of the leader. The leader itself is not killed. If the
    leader has already ended, its descendants are not found, so the leader must end them itself.

    Args:
        leader: The process ID of the leader, or 0 for the group of this process.
    """
    if sys.platform == "win32":
        kill_descendants(leader)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(leader, signal.SIGKILL)


def request_end_of_own_group() -> None:
    """Send SIGTERM to the group that this process leads, including this process.

    Windows cannot send signals. On Windows, the main thread of this process runs its handler of
    SIGTERM, and the descendants of this process are killed.
    """
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main(signal.SIGTERM)
        kill_descendants(0)
        return
    os.killpg(0, signal.SIGTERM)


def kill_descendants(process: int) -> None:
    """Kill the descendants of a process, and ignore processes that have ended.

    Args:
        process: The process ID, or 0 for this process.
    """
    import psutil

    with contextlib.suppress(psutil.Error):  # the process has ended
        for descendant in psutil.Process(process or None).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # the descendant has ended
                descendant.kill()


def lower_priority() -> None:
    """Give this process the lowest priority."""
    if sys.platform == "win32":
        import psutil

        psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS)
        return
    os.nice(19)  # the lowest priority of POSIX systems


def call_at_forks(
    *,
    before: Callable[[], object],
    after_in_parent: Callable[[], object],
    after_in_child: Callable[[], object],
) -> None:
    """Call functions at each fork of this process. Windows has no forks."""
    if sys.platform != "win32":
        os.register_at_fork(
            before=before, after_in_parent=after_in_parent, after_in_child=after_in_child
        )
