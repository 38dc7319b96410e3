"""Runs a command that must not outlive whoever wants it: the process between the two.

``process.run`` starts this file as a script, in a session of its own, with a socket and an order:
the command, its limits, and what removes its container if it has one. The command and all that it
starts are in the process group of the script. The group is ended when the command ends, takes too
long, or when the other end of the socket is closed, be it that its process was killed: first it is
asked to (SIGTERM) and waited for, then the container is removed, then what is left is killed.
The script answers by a line, ``exit CODE``, ``late``, ``ended`` or ``error REASON``, and ends with
the group.

Nothing of this package is imported here: the script starts before every command.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any

GRACE_SECONDS = 5.0
"""How long a process that was asked to end is waited for."""
REMOVAL_SECONDS = 30.0
"""How long an engine may take to remove a container."""

_ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CHANGED = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, *_ASKING)  # here, or by Python
_PR_SET_PDEATHSIG = 1


class Guard:
    """A command that runs, and who waits for it.

    Args:
        connection: The socket; its other end is the caller's.
        order: See `process.run`.
    """

    def __init__(self, connection: socket.socket, order: Mapping[str, Any]) -> None:
        self._connection = connection
        self._order = order
        self._caller = os.getppid()
        self._signals, noted = os.pipe()
        os.set_blocking(noted, False)
        signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_ASKING):
            signal.signal(number, lambda *_: None)  # their numbers are read from the pipe

    def run(self) -> None:
        """Start the command, wait, answer, and end the group with this process in it."""
        command = self._start(self._order["command"], limited=True)
        deadline = monotonic() + self._order["seconds"]
        code = self._wait(command, deadline, attentive=True)
        removal = self._order["removal"]
        if code is None:
            os.killpg(0, signal.SIGTERM)
            self._wait(command, monotonic() + GRACE_SECONDS)
        if removal and (code is None or code < 0):  # a container goes on without its client
            self._wait(self._start(removal), monotonic() + REMOVAL_SECONDS)
            self._wait(command, monotonic() + GRACE_SECONDS)
        with contextlib.suppress(OSError):  # nobody is there any more
            late = "late" if monotonic() >= deadline else "ended"
            self._answer(late if code is None else f"exit {code}")
        os.killpg(0, signal.SIGKILL)

    def _start(self, command: list[str], limited: bool = False) -> int:
        """Start a command in this process's group; return its id."""
        guard = os.getpid()
        child = os.fork()
        if child:
            return child
        try:
            signal.set_wakeup_fd(-1)
            for number in _CHANGED:
                signal.signal(number, signal.SIG_DFL)
            if limited:
                self._limit()
                _end_with_parent(guard)
            os.execvp(command[0], command)
        except OSError as error:
            if limited:  # that a container cannot be removed is not why the command has ended
                self._answer(f"error {error.strerror}")
        finally:
            os._exit(127)

    def _limit(self) -> None:
        """Bound the private memory of each process of the command."""
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = self._order["memory"]
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def _wait(self, process: int, deadline: float, attentive: bool = False) -> int | None:
        """The exit code (-n for signal n) of a process; None if it still runs at the deadline.

        Args:
            process: Its id. One that has been waited for has ended.
            deadline: When to stop waiting.
            attentive: Stop when somebody wants it to end, too.
        """
        connection = self._connection.fileno()
        wanted = [self._signals, *([connection] if attentive else [])]
        while True:
            try:
                ended, status = os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                return 0
            if ended:
                return os.waitstatus_to_exitcode(status)
            left = deadline - monotonic()
            if left <= 0:
                return None
            # a fork of the caller may keep the other end open: look for the caller itself, too
            ready = select.select(wanted, [], [], min(left, 1.0))[0]
            asked = self._signals in ready and set(os.read(self._signals, 64)) & set(_ASKING)
            gone = connection in ready or os.getppid() != self._caller
            if attentive and (asked or gone):
                return None

    def _answer(self, line: str) -> None:
        self._connection.sendall(f"{line}\n".encode())


def _end_with_parent(parent: int) -> None:
    """Have the system ask this process to end when the guard is killed, where it can (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it was killed just now
        os._exit(127)


if __name__ == "__main__":
    theirs = socket.socket(fileno=int(sys.argv[1]))
    theirs.set_inheritable(False)
    Guard(theirs, json.loads(sys.argv[2])).run()
