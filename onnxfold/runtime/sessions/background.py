"""Run work of a session in a thread that ends with the session."""

from __future__ import annotations

import threading
from collections.abc import Callable

from onnxfold.support import isolated


class BackgroundThread:
    """A thread that does some work once; the processes that it starts end with it.

    Args:
        work: Called in the thread. It must not refer to the owner of the thread.
        delay: Seconds to wait before, unless `is_urgent` is set.
    """

    def __init__(self, work: Callable[[], None], *, delay: float = 0.0) -> None:
        self.is_urgent = threading.Event()
        self._delay = delay
        self._processes = isolated.Processes()
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="onnxfold", daemon=True
        )
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the work is done, or for some seconds."""
        self._thread.join(timeout)

    def close(self) -> None:
        """End the processes, and wait for the thread."""
        self._processes.close()
        self.is_urgent.set()
        if self._thread is not threading.current_thread():
            self.join()

    def _run(self, work: Callable[[], None]) -> None:
        self._processes.enter()
        if self._delay > 0:
            self.is_urgent.wait(self._delay)
        work()
