"""Run compilers and kernels in other processes, as they may crash or hang."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onnxfold import files, isolated
from onnxfold.memory import memory_of_the_machine
from onnxfold.runtime.backends.base import CompileError

_TELLING = re.compile(
    "error|assertion|unreachable|terminate called"
    "|no space left|quota exceeded|out of memory|bad_alloc|cannot allocate",
    re.IGNORECASE,
)


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """Provide a temporary folder; an OSError in it becomes a CompileError."""
    try:
        with files.scratch_folder("compile") as name:
            yield Path(name)
    except OSError as error:
        raise CompileError(f"{error.filename or 'temporary files'}: {error.strerror}") from error


def run_command(
    command: Sequence[str], seconds: float, *, what: str = "the compiler", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command, see `isolated.run_command`, with `memory_limit` for each process.

    ``what`` is its name in messages; a failure of the process is a CompileError.
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
    """Run a function, see `isolated.run`, in the same way."""
    with _told(what, seconds):
        return isolated.run(function, request, arrays, seconds=seconds, memory=memory_limit())


@contextlib.contextmanager
def _told(what: str, seconds: float) -> Iterator[None]:
    """Turn failures of a process into a CompileError."""
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
    """Return the memory limit of a compilation process in bytes: half of the machine's memory."""
    return memory_of_the_machine() // 2


def ending(code: int, text: str) -> str:
    """Return a description of a program's exit code (-n or 128 + n for signal n) and output."""
    number = -code if code < 0 else code - 128
    how = f"crashed (signal {number})" if number > 0 else f"failed (exit code {code})"
    return f"{how}: {reason_in(text)}".removesuffix(": ")


def reason_in(text: str) -> str:
    """Return the error line of a program's output, or its first line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(next(filter(_TELLING.search, lines), *lines[:1] or [""]))


def one_line(text: str) -> str:
    """Return a message without line breaks and file positions, shortened to 200 characters."""
    text = re.sub(r"^.*?(error:\s*|(?=Assertion ))", "", " ".join(text.split()))
    return text if len(text) <= 200 else text[:197] + "..."
