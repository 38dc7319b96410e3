"""Running compilers and kernels in processes of their own: they crash, hang and say why."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onnxfold.runtime.backends.base import CompileError

_running: set[int] = set()
"""Process groups that threads of this process wait for."""


def run(
    command: Sequence[str],
    seconds: float,
    *,
    what: str = "the compiler",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stop: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own, which ends with it, whatever it starts in turn.

    Args:
        command: The command line.
        seconds: Time limit.
        what: What runs there, for messages.
        folder: Where it runs.
        environment: Its variables; None for those of this process.
        stop: Ends what goes on when the command was killed.

    Returns:
        Exit code (-n for signal n), and what it printed.

    Raises:
        CompileError: It cannot be started, or takes longer than ``seconds``.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise CompileError(f"{command[0]}: {error.strerror}") from error
    with process:
        _running.add(process.pid)
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException as error:  # also when the user interrupts
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            if stop is not None:
                stop()
            if isinstance(error, subprocess.TimeoutExpired):
                raise CompileError(f"{what} took longer than {seconds:g} s") from None
            raise
        finally:
            _running.discard(process.pid)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def kill_running() -> None:
    """End what other threads wait for: an interrupt reaches the main thread only."""
    for group in tuple(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def run_child(command: Sequence[str], seconds: float, *, what: str = "the compiler") -> None:
    """Run a module of this package, which finds the modules that this process finds.

    Raises:
        CompileError: It fails, is killed by a signal, or takes longer than ``seconds``.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    done = run(command, seconds, what=what, environment=environment)
    if done.returncode < 0:
        signal_ = f"signal {-done.returncode}"
        raise CompileError(f"{what} crashed ({signal_}){last_words(done.stderr)}")
    if done.returncode:
        raise CompileError(reason_in(done.stderr))


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
