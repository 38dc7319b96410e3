"""Running compilers and kernels in other processes: they crash, hang and say why."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onnxfold import files, isolated
from onnxfold.memory import memory_of_the_machine
from onnxfold.runtime.backends.base import CompileError

Progress = Callable[[str, int, int], None]
"""Called with a stage, the work done and all work of the stage."""

_TELLING = re.compile(
    "error|assertion|unreachable|terminate called"
    "|no space left|quota exceeded|out of memory|bad_alloc|cannot allocate",
    re.IGNORECASE,
)


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder among the temporary files, gone at the end; what dead processes left goes now.

    Raises:
        CompileError: Something cannot be written there.
    """
    try:
        with files.scratch_folder("compile") as name:
            yield Path(name)
    except OSError as error:
        raise CompileError(f"{error.filename or 'temporary files'}: {error.strerror}") from error


def run_command(
    command: Sequence[str], seconds: float, *, what: str = "the compiler", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, each process of which may have `memory_limit`.

    Args:
        command: The command line.
        seconds: Time limit.
        what: What runs there, for messages.
        options: Others of `isolated.run_command`.

    Raises:
        CompileError: It cannot be started, takes longer than ``seconds``, or is ended by others.
    """
    with _told(what, seconds):
        memory = memory_limit()
        return isolated.run_command(command, seconds=seconds, memory=memory, **options)


def run_function(
    function: str,
    request: Any,
    arrays: Sequence[Any],
    seconds: float,
    *,
    what: str = "the compiler",
) -> tuple[Any, list[Any]]:
    """Run a function, see `isolated.run`. Each process may have `memory_limit`.

    Raises:
        CompileError: It fails, crashes, or takes longer than ``seconds``.
    """
    with _told(what, seconds):
        return isolated.run(function, request, arrays, seconds=seconds, memory=memory_limit())


@contextlib.contextmanager
def _told(what: str, seconds: float) -> Iterator[None]:
    """Make an error of a compiler of what went wrong in its process."""
    try:
        yield
    except isolated.Failure as failure:
        if failure.kind == "late":
            raise CompileError(f"{what} took longer than {seconds:g} s") from failure
        if failure.kind == "ended":
            raise CompileError(f"{what} {ending(failure.code, failure.output)}") from failure
        reason = reason_in(f"{failure}\n{failure.output}")
        raise CompileError(reason or failure.kind) from failure


def memory_limit() -> int:
    """Return the bytes that one process of a compilation may take: half of what the machine has."""
    return memory_of_the_machine() // 2


def ending(code: int, text: str) -> str:
    """Return how a program ended, by its exit code (-n or 128 + n for signal n) and output."""
    number = -code if code < 0 else code - 128
    how = f"crashed (signal {number})" if number > 0 else f"failed (exit code {code})"
    return f"{how}: {reason_in(text)}".removesuffix(": ")


def reason_in(text: str) -> str:
    """Return the line of a program's output that says what is wrong, or its first line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(next(filter(_TELLING.search, lines), *lines[:1] or [""]))


def one_line(text: str) -> str:
    """Return a message without line breaks and file positions, cut to a readable length."""
    text = re.sub(r"^.*?(error:\s*|(?=Assertion ))", "", " ".join(text.split()))
    return text if len(text) <= 200 else text[:197] + "..."
