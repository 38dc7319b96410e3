"""The memory that the models of one process share."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator


class MemoryShare:
    """Bytes of memory that are given out to threads, first come, first served."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._given = 0
        self._waiting: deque[object] = deque()

    @contextlib.contextmanager
    def of(self, nbytes: int, limit: int) -> Iterator[None]:
        """Hold some bytes; wait until no more than a limit, bytes, is held with them."""
        turn = object()
        with self._condition:
            self._waiting.append(turn)
            self._condition.wait_for(
                lambda: self._waiting[0] is turn and self._given + nbytes <= max(limit, nbytes)
            )
            self._waiting.popleft()
            self._given += nbytes
            self._condition.notify_all()
        try:
            yield
        finally:
            with self._condition:
                self._given -= nbytes
                self._condition.notify_all()
