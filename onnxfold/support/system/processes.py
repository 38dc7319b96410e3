"""Other processes: groups of processes and their end, priorities, and forks."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess


def start_group(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that leads a group of processes of its own.

    Ctrl-C on the terminal of this process does not reach the group.

    Args:
        command: The program and its arguments.
        options: Further arguments of `subprocess.Popen`.
    """
    import subprocess

    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        return subprocess.Popen(command, creationflags=flags, **options)
    return subprocess.Popen(command, start_new_session=True, **options)


def end_group(leader: int) -> None:
    """Kill the processes of a group.

    On Windows, these are the processes that the leader has started, and those that these have
    started. The leader itself is not killed. If the leader has already ended, none is found: it
    must end them itself.

    Args:
        leader: The process ID of its leader; 0 for the group of this process.
    """
    if sys.platform == "win32":
        kill_descendants(leader)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(leader, signal.SIGKILL)


def request_end_of_own_group() -> None:
    """Ask the processes of the group that this process leads to end: SIGTERM.

    This includes this process. Windows does not transmit signals: there, the main thread runs its
    handler of SIGTERM, and the other processes are killed.
    """
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main(signal.SIGTERM)
        kill_descendants(0)
        return
    os.killpg(0, signal.SIGTERM)


def kill_descendants(process: int) -> None:
    """Kill the processes that a process has started, and those that these have started.

    Args:
        process: Its process ID; 0 for this process.
    """
    import psutil

    with contextlib.suppress(psutil.Error):  # the process has ended
        for descendant in psutil.Process(process or None).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended
                descendant.kill()


def lower_priority() -> None:
    """Give this process the lowest priority."""
    if sys.platform == "win32":
        import psutil

        psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS)
        return
    os.nice(19)  # the lowest priority of POSIX systems is 19 below the usual one


def call_at_forks(
    *,
    before: Callable[[], object],
    after_in_parent: Callable[[], object],
    after_in_child: Callable[[], object],
) -> None:
    """Call functions at each fork of this process; Windows has no forks."""
    if sys.platform != "win32":
        os.register_at_fork(
            before=before, after_in_parent=after_in_parent, after_in_child=after_in_child
        )
