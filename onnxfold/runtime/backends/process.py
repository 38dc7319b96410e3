"""Running compilers in processes of their own: they crash, hang and say why on standard error."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from onnxfold.runtime.backends.base import CompileError


def run_child(command: Sequence[str], seconds: float, *, what: str = "the compiler") -> None:
    """Run a module of this package in a process of its own.

    Args:
        command: The command line.
        seconds: Time limit.
        what: What runs there, for messages.

    Raises:
        CompileError: It fails, is killed by a signal, or takes longer than ``seconds``.
    """
    folder = str(Path(__file__).parents[3])  # this package, wherever it was imported from
    path = os.pathsep.join(p for p in (folder, os.environ.get("PYTHONPATH")) if p)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"{what} took longer than {seconds:g} s") from None
    if done.returncode < 0:
        raise CompileError(f"{what} crashed (signal {-done.returncode})")
    if done.returncode:
        raise CompileError(reason_in(done.stderr))


def reason_in(text: str) -> str:
    """The line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "Error" in line]
    return one_line((errors or lines or ["the compiler failed"])[0])


def one_line(text: str) -> str:
    """A message without its line breaks and file positions, cut to a readable length."""
    text = re.sub(r"^.*?error:\s*", "", " ".join(text.split()))
    return text if len(text) <= 200 else text[:197] + "..."
