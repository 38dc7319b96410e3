"""A thread in which a session works in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable

from onnxfold.support import isolated


class BackgroundThread:
    """A thread that calls a function once. `close` ends the child processes of the function.

    Args:
        work: The function. It must not keep the object alive that owns this thread.
        delay: Seconds before the call. Setting `is_urgent` ends the delay.
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
        """Wait until the function returns, for at most ``timeout`` seconds."""
        self._thread.join(timeout)

    def close(self) -> None:
        """End the child processes of the function, and wait for the thread.

        If the delay has not ended, it ends now, and the function is called. In the thread itself,
        the method does not wait.
        """
        self._processes.close()
        self.is_urgent.set()
        if self._thread is not threading.current_thread():
            self.join()

    def _run(self, work: Callable[[], None]) -> None:
        self._processes.enter()
        if self._delay > 0:
            self.is_urgent.wait(self._delay)
        work()
