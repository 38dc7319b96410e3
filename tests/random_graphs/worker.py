"""A child process that makes and checks models: when it dies or hangs, that is one result."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

SECONDS_A_GRAPH = 30
_MEMORY = 6 << 30


class Died(Exception):
    """The child process ended or did not answer; how, and during which phase."""

    def __init__(self, how: str, phase: str) -> None:
        super().__init__(f"{how} during {phase}")
        self.how = how
        self.phase = phase


class Worker:
    """Runs functions of a module in a child process.

    Args:
        tasks: The module; the functions take what tells of their phase first.
    """

    def __init__(self, tasks: str = f"{__package__}.tasks") -> None:
        self._tasks = tasks
        self._process: Any = None
        self._pipe: Connection | None = None

    def run(self, task: str, *arguments: Any, seconds: float = SECONDS_A_GRAPH) -> Any:
        """The result of a task. Raises Died."""
        if self._process is None:
            self._start()
        assert self._pipe is not None
        self._pipe.send((task, arguments))
        phase = "start"
        while True:
            try:
                if not self._pipe.poll(seconds):
                    self.stop()
                    raise Died("hangs", phase)
                kind, content = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self._process.join()
                code = self._process.exitcode
                self.stop()
                name = signal.Signals(-code).name if code and code < 0 else f"exit {code}"
                raise Died(name, phase) from None
            if kind == "phase":
                phase = content
            elif kind == "error":
                raise content
            else:
                return content

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._tasks), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe = ours

    def stop(self) -> None:
        """End the child process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _serve(pipe: Connection, tasks: str) -> None:
    import resource
    import warnings

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # onnxruntime writes warnings whatever it is told
    module = importlib.import_module(tasks)

    def phase(name: str) -> None:
        pipe.send(("phase", name))

    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            name, arguments = pipe.recv()
            task: Callable[..., Any] = getattr(module, name)
            try:
                result = ("done", task(phase, *arguments))
                pickle.dumps(result[1])
            except Exception as error:
                result = ("error", RuntimeError(f"{type(error).__name__}: {error}"))
            pipe.send(result)
