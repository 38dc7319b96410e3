"""Simulate Windows on Linux for onnxfold: ``pytest -p tests.portability.as_on_windows``.

Modules of onnxfold and its tests see ``sys.platform == "win32"``. Functions that Windows lacks do
not exist for these modules. Functions of Windows are replaced by functions of Linux with the same
effect.

The following is the same for all packages. A file that a process has open or mapped cannot be
removed or replaced. An open file cannot be renamed, unless `_winapi.CreateFile` has opened it. A
folder with an open or mapped file cannot be renamed. The default encoding of text files is cp1252.
Crashed processes have the exit codes of Windows.

The simulation does not include Windows' rules for paths, its file locks, the memory of mapped
files, consoles, and libraries.
"""

import builtins
import contextlib
import ctypes
import errno
import fcntl
import io
import mmap
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import psutil

from tests.portability.other_system import View, install

ABSENT_MODULES = {"fcntl", "grp", "pwd", "resource", "termios"}

ABSENT_IN_OS = {
    "O_CLOEXEC",
    "O_DIRECTORY",
    "O_NOFOLLOW",
    "O_NONBLOCK",
    "O_SYNC",
    "O_TMPFILE",
    "RTLD_LOCAL",
    "RTLD_NOW",
    "chown",
    "copy_file_range",
    "fchmod",
    "fchown",
    "fdatasync",
    "fork",
    "forkpty",
    "getegid",
    "geteuid",
    "getgid",
    "getpgid",
    "getpgrp",
    "getuid",
    "killpg",
    "memfd_create",
    "mkfifo",
    "mknod",
    "nice",
    "posix_fadvise",
    "posix_fallocate",
    "pread",
    "preadv",
    "pwrite",
    "pwritev",
    "register_at_fork",
    "sched_getaffinity",
    "sendfile",
    "setsid",
    "splice",
    "statvfs",
    "sysconf",
    "wait",
}

ABSENT_IN_SIGNAL = {
    "ITIMER_PROF",
    "SIGALRM",
    "SIGCHLD",
    "SIGHUP",
    "SIGKILL",
    "SIGPIPE",
    "SIGPROF",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGXFSZ",
    "alarm",
    "setitimer",
}

FILE_SHARE_DELETE = 4  # from winnt.h

EXIT_CODES = {
    signal.SIGABRT: 0xC0000409,
    signal.SIGFPE: 0xC0000094,
    signal.SIGILL: 0xC000001D,
    signal.SIGSEGV: 0xC0000005,
}
"""Exit codes by signal. Other fatal signals have the exit code 1, as `Popen.kill` on Windows."""

# ---------------------------------------------------------------- files in use


def is_in_use(path: Any) -> bool:
    """Return whether a process has the file open or mapped."""
    return bool({*uses(path)})


def is_fixed(path: Any) -> bool:
    """Return whether a process has opened the file without `create_file`."""
    return False in uses(path)


def uses(path: Any) -> Iterator[bool]:
    """Yield for each descriptor and mapping of a regular file whether the file can be renamed."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(status.st_mode) or is_unused(path):
        return
    name = os.fsencode(f" {os.path.realpath(os.fsdecode(path))}\n")
    device = os.major(status.st_dev), os.minor(status.st_dev)
    inode = b" %02x:%02x %d " % (*device, status.st_ino)
    for process in processes() - UNRELATED:
        for descriptor in entries(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(status, os.stat(f"/proc/{process}/fd/{descriptor}")):
                    yield shares_name(f"/proc/{process}/fdinfo/{descriptor}")
        with contextlib.suppress(OSError), linux_open(f"/proc/{process}/maps", "rb") as lines:
            text = lines.read()
            if name in text or inode in text:
                yield True  # mappings permit renaming


def is_unused(path: Any) -> bool:
    """Return whether the system grants an exclusive lease of a file.

    The system grants the lease only if no process has the file open or mapped. This check is fast.
    """
    with contextlib.suppress(OSError):
        descriptor = linux_os_open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            return True
        finally:
            os.close(descriptor)
    return False


def shares_name(description: str) -> bool:
    """Return whether `create_file` opened the file of a descriptor.

    ``description`` is the path of the descriptor's file in ``/proc/PID/fdinfo``.
    """
    with linux_open(description) as lines:
        flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
    return bool(flags & os.O_NONBLOCK)


def processes() -> set[str]:
    return {*filter(str.isdigit, entries("/proc"))}


def own_and_parents() -> set[str]:
    own = psutil.Process()
    return {str(process.pid) for process in (own, *own.parents())}


def entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the process has ended
        return []


def refuse(path: Any) -> None:
    # tests compare the error text of Linux
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def removing(function: Any) -> Any:
    def remove(path: Any, **options: Any) -> Any:
        if options.get("dir_fd") is None and is_in_use(path):
            refuse(path)
        return function(path, **options)

    return remove


def renaming(function: Any, *, replaces: bool) -> Any:
    def rename(source: Any, target: Any, **options: Any) -> Any:
        inside = [Path(folder, n) for folder, _, names in os.walk(source) for n in names]
        if is_fixed(source) or any(map(is_in_use, inside)):
            refuse(source)
        if os.path.isdir(target) or (replaces and is_in_use(target)):
            refuse(target)
        if not replaces and os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        return function(source, target, **options)

    return rename


def create_file(path: str, access: int, share: int, *rest: int) -> int:
    """Open a file as `_winapi.CreateFile` does; the handle is a descriptor.

    O_NONBLOCK marks the descriptor for `shares_name`. The flag has no effect on regular files.
    """
    assert share & FILE_SHARE_DELETE
    descriptor: int = linux_os_open(path, os.O_RDONLY | os.O_NONBLOCK)
    return descriptor


def open_file(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
    if os.path.isdir(path):
        refuse(path)
    descriptor: int = linux_os_open(path, flags, mode, **options)
    return descriptor


def sync(descriptor: int) -> None:
    """Sync a file, but refuse a descriptor that is open for reading only, as Windows does."""
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    linux_fsync(descriptor)


def open_text(
    file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *rest: Any, **more: Any
) -> Any:
    if "b" not in mode and encoding in (None, "locale"):
        encoding = "cp1252"
    return linux_open(file, mode, buffering, encoding, *rest, **more)


class FileLock(filelock.FileLock):
    """A lock that removes its file after the release, as filelock does on Windows."""

    def release(self, force: bool = False) -> None:
        super().release(force)
        with contextlib.suppress(OSError):
            descriptor = linux_os_open(self.lock_file, os.O_RDWR)
            with os.fdopen(descriptor):  # flock fails if another process has the lock
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                linux_unlink(self.lock_file)


# ---------------------------------------------------------------- processes


class Process(psutil.Process):
    """A process with the memory information that psutil has on Windows."""

    def memory_info(self) -> Any:
        own = super().memory_info()
        peak = own.rss
        with contextlib.suppress(OSError), linux_open(f"/proc/{self.pid}/status") as status:
            peak = next(int(line.split()[1]) << 10 for line in status if "VmHWM" in line)
        return types.SimpleNamespace(
            rss=own.rss, vms=own.vms, private=own.rss - own.shared, peak_wset=peak
        )

    def children(self, recursive: bool = False) -> list[Any]:
        found = []
        for process in super().children(recursive):
            with contextlib.suppress(psutil.Error):  # the process has ended
                found.append(Process(process.pid))
        return found


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that reports fatal signals as exit codes of Windows.

    A process with ``creationflags`` receives no signals of the terminal.
    """

    def __init__(self, command: Any, *arguments: Any, creationflags: int = 0, **options: Any):
        options["start_new_session"] = bool(creationflags)
        super().__init__(command, *arguments, **options)

    def _handle_exitstatus(self, *arguments: Any) -> None:
        super()._handle_exitstatus(*arguments)  # type: ignore[misc]
        if self.returncode is not None and self.returncode < 0:
            self.returncode = EXIT_CODES.get(-self.returncode, 1)


def load(name: Any, *arguments: Any, **options: Any) -> Any:
    return ctypes.CDLL(None if name == "msvcrt" else name, *arguments, **options)


# ---------------------------------------------------------------- installation

linux_open = builtins.open
linux_os_open = os.open
linux_fsync = os.fsync
linux_unlink = os.unlink

# Older processes do not use files of the tests, except the parents of this process.
UNRELATED = processes() - own_and_parents()

VIEWS: dict[str, types.ModuleType] = {
    "os": View(os, ABSENT_IN_OS, open=open_file, fsync=sync, O_BINARY=0),
    "sys": View(sys, platform="win32"),
    "signal": View(signal, ABSENT_IN_SIGNAL),
    "mmap": View(mmap, {"MADV_DONTNEED"}),
    "ctypes": View(ctypes, CDLL=load),
    "filelock": View(filelock, FileLock=FileLock),
    "psutil": View(psutil, Process=Process, IDLE_PRIORITY_CLASS=19),
    "subprocess": View(subprocess, CREATE_NEW_PROCESS_GROUP=0x200, CREATE_NO_WINDOW=0x8000000),
    "_winapi": types.SimpleNamespace(CreateFile=create_file, GENERIC_READ=1 << 31, OPEN_EXISTING=3),
    "msvcrt": types.SimpleNamespace(open_osfhandle=lambda handle, flags: handle),
    "_ctypes": types.SimpleNamespace(FreeLibrary=__import__("_ctypes").dlclose),
}

_, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent if another process opens a leased file
subprocess.Popen = Popen  # type: ignore[misc]
os.unlink = removing(os.unlink)
os.remove = os.unlink
os.replace = renaming(os.replace, replaces=True)
os.rename = renaming(os.rename, replaces=False)
shutil._use_fd_functions = False  # type: ignore[attr-defined]  # these functions open folders
builtins.open = open_text
io.open = open_text
install(__name__, VIEWS, ABSENT_MODULES)
