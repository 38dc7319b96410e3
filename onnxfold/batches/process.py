"""Worker processes: started when they are needed, used again, ended when they do not answer."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from onnxfold.system import OWN_SESSION

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from onnxfold.batches.worker import main; main()"
)
# Seconds that a process has for ending.
_PATIENCE = 5
# A process that has so many times the memory that it had at first is not used again.
_MOST_GROWTH = 2


class Ended(Exception):
    """The process has ended without an answer.

    Args:
        reason: What ended it.
        is_killed: Whether it was killed from outside: it may do better another time.
    """

    def __init__(self, reason: str, *, is_killed: bool = False) -> None:
        super().__init__(reason)
        self.is_killed = is_killed


class WorkerProcess:
    """A process that plans and optimizes models."""

    def __init__(self) -> None:
        self._rss: int | None = None
        self._process = subprocess.Popen(
            # it finds the modules that this process finds
            [sys.executable or "python3", "-I", "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            encoding="utf-8",
            **OWN_SESSION,
        )

    def ask(self, request: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            Ended: There is none, or not within so many seconds; the process is gone.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, end) if seconds is not None else None
        try:
            if timer is not None:
                timer.start()
            with contextlib.suppress(BrokenPipeError):  # it has ended: the line is empty
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            if timer is not None:
                timer.cancel()
        if line.endswith("\n"):
            answer: dict[str, Any] = json.loads(line)
            self._rss = self._rss or answer.get("rss")
            self.is_large = (answer.get("rss") or 0) > _MOST_GROWTH * (self._rss or 0)
            return answer
        code = self._process.wait()
        if late.is_set():
            raise Ended(f"it takes longer than {seconds:g} s")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise Ended(f"the worker process ended with {how}", is_killed=code in (-9, -15))

    is_large = False
    """Whether it holds on to memory that others could use."""

    def ask_to_end(self) -> None:
        """Close its input, which ends its work: it removes what it has written of a file."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def stop(self) -> None:
        """End the process, and wait until it has."""
        self.ask_to_end()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Processes:
    """Worker processes for the threads of this one. Those without work wait for the next model."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._used: set[WorkerProcess] = set()
        self._has_ended = False
        self._owner = os.getpid()
        atexit.register(self.end)

    @contextlib.contextmanager
    def one(self) -> Iterator[WorkerProcess]:
        """A process for this thread. Raises Ended if no more are started."""
        with self._lock:
            if self._has_ended:
                raise Ended("the batch was ended")
            process = self._idle.pop() if self._idle else WorkerProcess()
            self._used.add(process)
        try:
            yield process
        except BaseException:  # it may still be at work
            process.stop()
            raise
        else:
            if process.is_large:
                process.stop()
            else:
                with self._lock:
                    self._idle.append(process)
        finally:
            with self._lock:
                self._used.discard(process)

    def end(self) -> None:
        """End all of them, also those that work, and start no more."""
        if os.getpid() != self._owner:
            return  # a fork of their process does not end them
        atexit.unregister(self.end)
        with self._lock:
            self._has_ended = True
            processes = [*self._idle, *self._used]
        for process in processes:
            process.ask_to_end()
        for process in processes:
            process.stop()
