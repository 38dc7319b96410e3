"""Test that only `onnxfold.support.system` depends on the operating system.

mypy checks the package for Linux, macOS and Windows, but accepts ``hasattr(os, "fork")``, paths in
/proc, and functions that have another effect on each system. The tests in this file find them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWNER = ROOT / "onnxfold" / "support" / "system"

MODULES = {
    "_ctypes",
    "_posixsubprocess",
    "_winapi",
    "ctypes.util",
    "ctypes.wintypes",
    "fcntl",
    "grp",
    "msvcrt",
    "nt",
    "posix",
    "psutil",
    "pty",
    "pwd",
    "resource",
    "syslog",
    "termios",
    "tty",
    "winreg",
    "winsound",
}

NAMES = {
    "ctypes": {"CDLL", "OleDLL", "PyDLL", "WinDLL", "WinError", "cdll", "oledll", "windll"},
    "mmap": {"MAP_ANONYMOUS", "MAP_PRIVATE", "MAP_SHARED", "PROT_READ", "PROT_WRITE"},
    "os": {
        "chmod",
        "chown",
        "confstr",
        "copy_file_range",
        "fchdir",
        "fchmod",
        "fchown",
        "fdatasync",
        "fork",
        "forkpty",
        "fsync",
        "getegid",
        "geteuid",
        "getgid",
        "getgroups",
        "getloadavg",
        "getpgid",
        "getpgrp",
        "getpriority",
        "getsid",
        "getuid",
        "kill",
        "killpg",
        "lchown",
        "memfd_create",
        "mkfifo",
        "mknod",
        "name",
        "nice",
        "openpty",
        "posix_fadvise",
        "posix_fallocate",
        "pread",
        "preadv",
        "pwrite",
        "pwritev",
        "register_at_fork",
        "sched_getaffinity",
        "sched_setaffinity",
        "sendfile",
        "set_blocking",
        "setpgid",
        "setpgrp",
        "setpriority",
        "setsid",
        "setuid",
        "splice",
        "startfile",
        "statvfs",
        "sync",
        "sysconf",
        "umask",
        "uname",
        "wait",
        "wait4",
        "waitid",
        "waitpid",
        "O_BINARY",
        "O_CLOEXEC",
        "O_DIRECT",
        "O_DIRECTORY",
        "O_DSYNC",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "O_RANDOM",
        "O_SEQUENTIAL",
        "O_SYNC",
        "O_TEMPORARY",
        "O_TMPFILE",
        "RTLD_GLOBAL",
        "RTLD_LAZY",
        "RTLD_LOCAL",
        "RTLD_NODELETE",
        "RTLD_NOW",
    },
    "platform": {"libc_ver", "mac_ver", "platform", "processor", "system", "uname", "win32_ver"},
    "select": {"epoll", "kqueue", "poll"},
    "signal": {
        "CTRL_BREAK_EVENT",
        "CTRL_C_EVENT",
        "ITIMER_PROF",
        "ITIMER_REAL",
        "ITIMER_VIRTUAL",
        "SIGALRM",
        "SIGCHLD",
        "SIGHUP",
        "SIGKILL",
        "SIGPIPE",
        "SIGPROF",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGXCPU",
        "alarm",
        "pthread_kill",
        "pthread_sigmask",
        "setitimer",
        "sigtimedwait",
        "sigwait",
    },
    "socket": {"AF_UNIX", "recv_fds", "send_fds"},
    "subprocess": {"CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW", "STARTUPINFO"},
    "sys": {"getwindowsversion", "platform"},
}
"""Names in portable modules that only some systems have, or whose effect depends on the system."""

ATTRIBUTES = {"madvise", "st_gid", "st_uid"}
"""Attributes that depend on the operating system, of objects of any module."""

ARGUMENTS = {"creationflags", "preexec_fn", "process_group", "start_new_session", "startupinfo"}

LOOKUPS = {"delattr", "getattr", "hasattr", "setattr"}

FOLDERS = ("/dev/", "/proc/", "/sys/", "C:\\")


def dependencies(tree: ast.AST) -> Iterator[str]:
    """Yield expressions that depend on the operating system."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                modules[alias.asname or name] = name

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_module(alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_name = alias.name in NAMES.get(str(node.module), ())
                if is_module(str(node.module)) or is_module(name) or is_name:
                    yield name
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            is_name = node.attr in NAMES.get(modules.get(owner, ""), ())
            if is_name or node.attr in ATTRIBUTES or is_module(ast.unparse(node)):
                yield ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg in ARGUMENTS:
            yield str(node.arg)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in LOOKUPS:
            owner, name = (ast.unparse(argument).strip("'") for argument in node.args[:2])
            if name in NAMES.get(modules.get(owner, ""), ()):
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and str(node.value).startswith(FOLDERS):
            yield repr(node.value)


def is_module(name: str) -> bool:
    """Return whether a module or one of its parents exists only on some systems."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in MODULES for count in range(1, len(parts) + 1))


def sources() -> list[Path]:
    return [*sorted((ROOT / "onnxfold").rglob("*.py")), *sorted((ROOT / "rules").rglob("*.py"))]


def test_only_one_package_depends_on_the_operating_system():
    violations = {
        f"{path.relative_to(ROOT)}: {dependency}"
        for path in sources()
        if OWNER not in path.parents
        for dependency in dependencies(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not violations, "\n".join(sorted(violations))


@pytest.mark.parametrize("path", [path for path in sources() if OWNER in path.parents])
def test_every_module_of_this_package_depends_on_the_operating_system(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert path.name == "__init__.py" or [*dependencies(tree)]


@pytest.mark.parametrize(
    "code",
    [
        "import resource",
        "import ctypes.util",
        "import os.path, fcntl as locks",
        "from psutil import Process",
        "from os import pwrite as put",
        "from ctypes import CDLL",
        "from ctypes import wintypes",
        "import os as system\nsystem.fork()",
        "def f():\n    import signal\n    signal.setitimer(0, 1)",
        "import sys\nif sys.platform == 'win32': pass",
        "import os\nhasattr(os, 'fork')",
        "import os\nsync = getattr(os, 'fdatasync', os.fsync)",
        "import subprocess\nsubprocess.Popen([], start_new_session=True)",
        "def f(mapped):\n    mapped.madvise(4)",
        "def f(status):\n    return status.st_uid",
        "open('/proc/self/status')",
    ],
)
def test_dependencies_are_found(code):
    assert [*dependencies(ast.parse(code))]


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.path.join(os.getcwd(), 'a')",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
        "def f(os):\n    return getattr(os, 'fork')",
        "'''Read /proc/self/status and call os.fork.'''",
        "from onnxfold.support.system import pread",
    ],
)
def test_portable_code_is_accepted(code):
    assert not [*dependencies(ast.parse(code))]
