"""What a pool held over the time of a run, in a bounded number of points."""

from __future__ import annotations

import time

_MOST = 1000


class Timeline:
    """Live bytes over time, beside what they would be if no result was ever given up.

    Each point stands for the same number of changes, with the most that was live during them. When
    there are too many points, two become one.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, int, int]] = []
        """Seconds since the start, bytes that were live, bytes of all results until then."""
        self.every_result = 0
        """Bytes of all results until now."""
        self._start = time.perf_counter()
        self._changes = 0
        self._stride = 1
        self._most = 0
        self._now = 0

    def holds(self, nbytes: int) -> None:
        """So many bytes are live from now on."""
        self._now = nbytes
        self._most = max(self._most, nbytes)
        self._changes += 1
        if self._changes >= self._stride:
            self._add()

    def made(self, nbytes: int) -> None:
        """There is a result of so many bytes more; who stores every intermediate keeps it."""
        self.every_result += nbytes
        self.holds(self._now)

    def end(self) -> None:
        """The run is over."""
        self._add()

    def _add(self) -> None:
        self.points.append((time.perf_counter() - self._start, self._most, self.every_result))
        self._changes, self._most = 0, self._now
        if len(self.points) >= _MOST:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(late, max(a, b), every) for (_, a, _), (late, b, every) in pairs]
            self._stride *= 2
