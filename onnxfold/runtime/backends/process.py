"""Running compilers and kernels in processes of their own: they crash, hang and say why."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onnxfold.memory import memory_of_the_machine
from onnxfold.runtime.backends.base import CompileError

_GUARD = [
    *(sys.executable or "python3", "-I", "-S"),
    str(Path(__file__).with_name("guard.py")),
]
_LONGEST_ANSWER = 1000  # bytes
_END_KEPT = 1 << 16  # bytes of the beginning of what a command prints, and as many of the end
_SHORTAGES = {
    "no room on the disk": "no space left on device|disk quota exceeded",
    "no more memory": "out of memory|bad_alloc|MemoryError|cannot allocate memory",
}
"""What is short, and what programs say that fail for lack of it."""


class CommandGroup:
    """What some threads run, to be ended from another: the main one, where interrupts arrive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guards: set[socket.socket] = set()
        self._ended = False

    def join(self) -> None:
        """Have what this thread runs from now on in the group."""
        _of_thread.group = self

    def end(self) -> None:
        """End what is running; nothing is started any more."""
        with self._lock:
            self._ended = True
            for guard in self._guards:
                with contextlib.suppress(OSError):  # it has just ended
                    guard.shutdown(socket.SHUT_WR)

    @contextlib.contextmanager
    def running(self, guard: socket.socket) -> Iterator[None]:
        """Something runs, and its guard is at the other end of a socket.

        Raises:
            CompileError: The group was ended.
        """
        with self._lock:
            if self._ended:
                raise CompileError("it was not started any more")
            self._guards.add(guard)
        try:
            yield
        finally:
            with self._lock:
                self._guards.discard(guard)


_of_thread = threading.local()


def run(
    command: Sequence[str],
    seconds: float,
    *,
    what: str = "the compiler",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    removal: Sequence[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends with all that it has started, also if this process is killed.

    It is asked to end (SIGTERM), waited for and then killed (`guard`), when it takes too long, when
    the user interrupts, and when this process dies.

    Args:
        command: The command line.
        seconds: Time limit. Each process of the command may have half of the machine's memory.
        what: What runs there, for messages.
        folder: Where it runs and has its temporary files; None for where this process does.
        environment: Its variables; None for those of this process.
        removal: The command that removes its container, if it is a container engine.

    Returns:
        Exit code (-n for signal n), and what it printed: of much, the beginning and the end.

    Raises:
        CompileError: It cannot be started, takes longer than ``seconds``, is ended by others, or
            says that there is no room for it, on the disk or in memory.
    """
    variables = dict(os.environ if environment is None else environment)
    if folder is not None:
        variables["TMPDIR"] = str(folder)
    order = {
        "command": list(command),
        "seconds": seconds,
        "memory": memory_limit(),
        "removal": removal,
    }
    group: CommandGroup = getattr(_of_thread, "group", None) or CommandGroup()
    ours, theirs = socket.socketpair()
    with ours, group.running(ours):
        with theirs:
            guard = subprocess.Popen(
                [*_GUARD, str(theirs.fileno()), json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
                env=variables,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            out, err = _printed(guard)
        except BaseException:  # the user interrupts: the guard sees it, and ends with the command
            ours.shutdown(socket.SHUT_WR)
            guard.wait()
            raise
        answer, _, detail = ours.recv(_LONGEST_ANSWER).decode().partition("\n")[0].partition(" ")
    if answer == "exit":
        code = int(detail)
        for line in err.splitlines() if code else []:
            for short, said in _SHORTAGES.items():
                if re.search(said, line, re.IGNORECASE):
                    raise CompileError(f"{what} has {short}: {one_line(line)}")
        return subprocess.CompletedProcess(command, code, out, err)
    if answer == "error":
        raise CompileError(f"{command[0]}: {detail}")
    raise CompileError(
        f"{what} took longer than {seconds:g} s" if answer == "late" else f"{what} was ended"
    )


def _printed(program: subprocess.Popen[bytes]) -> list[str]:
    """What a program prints on its two outputs until it has ended."""
    assert program.stdout and program.stderr
    with program.stdout, program.stderr, selectors.DefaultSelector() as waiting:
        kept = {program.stdout.fileno(): b"", program.stderr.fileno(): b""}
        for output in kept:
            waiting.register(output, selectors.EVENT_READ)
        while waiting.get_map():
            for ready, _ in waiting.select():
                block = os.read(ready.fd, _END_KEPT)
                if not block:
                    waiting.unregister(ready.fd)
                text = kept[ready.fd] + block
                if len(text) > 4 * _END_KEPT:
                    text = text[:_END_KEPT] + b"\n...\n" + text[-_END_KEPT:]
                kept[ready.fd] = text
    program.wait()
    return [text.decode(errors="replace") for text in kept.values()]


def run_child(
    command: Sequence[str], seconds: float, folder: Path, *, what: str = "the compiler"
) -> None:
    """Run a module of this package, which finds the modules that this process finds, in a folder.

    Raises:
        CompileError: It fails, is killed by a signal, or takes longer than ``seconds``.
    """
    places = os.pathsep.join(map(os.path.abspath, sys.path))
    environment = {**os.environ, "PYTHONPATH": places}
    done = run(command, seconds, what=what, folder=folder, environment=environment)
    if done.returncode < 0:
        signal_ = f"signal {-done.returncode}"
        raise CompileError(f"{what} crashed ({signal_}){last_words(done.stderr)}")
    if done.returncode:
        raise CompileError(reason_in(done.stderr))


def memory_limit() -> int:
    """Bytes that one process of a compilation may take: half of what the machine has."""
    return memory_of_the_machine() // 2


def reason_in(text: str) -> str:
    """The line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "Error" in line]
    return one_line((errors or lines or ["the compiler failed"])[0])


def last_words(text: str) -> str:
    """Behind ": ", what a program that died says about it; nothing if it says nothing."""
    said = re.search(r"(?:Assertion |LLVM ERROR|UNREACHABLE|terminate called|error:).*", text)
    return f": {one_line(said[0])}" if said else ""


def one_line(text: str) -> str:
    """A message without its line breaks and file positions, cut to a readable length."""
    text = re.sub(r"^.*?error:\s*", "", " ".join(text.split()))
    return text if len(text) <= 200 else text[:197] + "..."
