"""onnxfold on Linux as if it were on Windows: ``pytest -p tests.portability.other_system``.

What Windows has not is missing in the modules that onnxfold imports, here and in the processes that
it starts; other packages keep theirs. For all of them, a file that any process has open or mapped
can be neither removed nor replaced, and text is in cp1252 unless it is said otherwise.

``sys.platform`` still says linux: the calls of Windows' own library in ``onnxfold/system.py`` are
not run, and files in /proc are there, as is the signal of lost pages.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import select
import shutil
import signal
import socket
import stat
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_MODULES = {"fcntl", "resource", "pwd", "grp", "termios"}
_MISSING = {
    os: (
        *("pread", "pwrite", "preadv", "pwritev", "fchmod", "fchown", "chown", "lchown"),
        *("copy_file_range", "sendfile", "memfd_create", "splice", "fork", "forkpty", "killpg"),
        *("register_at_fork", "setsid", "getpgid", "getpgrp", "sysconf", "statvfs", "fstatvfs"),
        *("getuid", "geteuid", "getgid", "getegid", "mkfifo", "mknod", "sched_getaffinity"),
        *("fdatasync", "posix_fadvise", "posix_fallocate", "wait", "wait4", "set_blocking"),
        *("O_DIRECTORY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "O_TMPFILE"),
    ),
    signal: (
        *("SIGHUP", "SIGKILL", "SIGCHLD", "SIGPIPE", "SIGPROF", "SIGXFSZ", "SIGALRM"),
        *("SIGUSR1", "SIGUSR2", "SIGQUIT", "setitimer", "ITIMER_PROF", "alarm"),
    ),
    select: ("poll", "epoll"),
    socket: ("send_fds", "recv_fds", "AF_UNIX"),
}


class _Less(types.ModuleType):
    """A module as onnxfold sees it."""

    def __init__(self, module: types.ModuleType, **other: Any) -> None:
        super().__init__(module.__name__)
        self._module, self._other = module, other

    def __getattr__(self, name: str) -> Any:
        if name in _MISSING[self._module]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self._other.get(name) or getattr(self._module, name)


def _is_held(path: Any) -> bool:
    """Whether a process has the file open or mapped."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and any(
        os.path.samestat(status, other) for other in _held_files(os.path.realpath(path))
    )


def _held_files(real: Any) -> Iterator[os.stat_result]:
    for process in _listed("/proc"):
        if process.isdigit():
            for descriptor in _listed(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    yield os.stat(f"/proc/{process}/fd/{descriptor}")
            with contextlib.suppress(OSError), _open(f"/proc/{process}/maps", "rb") as lines:
                if os.fsencode(f" {os.fsdecode(real)}\n") in lines.read():
                    yield os.stat(real)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # it has just ended
        return []


def _holding(function: Any, count: int) -> Any:
    """The function, refused where one of so many paths is a file that somebody holds."""

    def held(*args: Any, **more: Any) -> Any:
        for path in args[:count]:
            if not more.get("dir_fd") and _is_held(path):
                raise PermissionError(errno.EACCES, "The process cannot access the file", path)
        return function(*args, **more)

    return held


def _open_file(path: Any, flags: int, mode: int = 0o777) -> int:
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)
    return _os_open(path, flags | os.O_NONBLOCK, mode)


def _open_text(
    file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *rest: Any, **more: Any
) -> Any:
    if "b" not in mode and encoding in (None, "locale"):
        encoding = "cp1252"
    return _open(file, mode, buffering, encoding, *rest, **more)


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    if level == 0 and str((globals or {}).get("__file__", "")).startswith(_OURS):
        if name in _MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in _less:
            return _less[name]
    module = _usual_import(name, globals, locals, fromlist, level)
    started = sys.modules.get("onnxfold.isolated")
    usual = getattr(started, "_PROGRAM", _BEFORE)
    if not usual.startswith(_BEFORE):
        started._PROGRAM = _BEFORE + usual
    return module


_OURS = str(ROOT / "onnxfold") + os.sep
_BEFORE = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.portability.other_system; "
_open, _os_open, _usual_import = builtins.open, os.open, builtins.__import__
os.unlink = os.remove = _holding(os.unlink, 1)
os.replace = _holding(os.replace, 2)
os.rename = _holding(os.rename, 2)
shutil._use_fd_functions = False  # type: ignore[attr-defined]  # they open folders
builtins.open = io.open = _open_text
_less = {module.__name__: _Less(module) for module in (signal, select, socket)}
_less["os"] = _Less(os, open=_open_file)
builtins.__import__ = _import
