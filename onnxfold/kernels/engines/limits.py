"""How much time the evaluation of a model's constants may take.

It is the time of processors that counts: what is folded should not depend on what else a machine
has to do.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

# What real models evaluate takes milliseconds; what was made to take long is stopped soon.
_LEAST_SECONDS = 3.0
# A model's own weights may be worked on for longer: so many of their bytes give a second more.
_BYTES_PER_SECOND = 16 << 20
# What NumPy goes through in a second at least, bytes.
_WORKED_PER_SECOND = 256 << 20
# With less time left than this nothing is started any more, seconds.
_LEAST_USEFUL = 0.05


class TimeLimit:
    """Seconds of a processor that all evaluations of one run may take together.

    Args:
        seconds: How many there are.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds

    def share(self) -> float:
        """Seconds that the next evaluation may take: half of those left; 0 if none are."""
        return self._left / 2 if self._left > _LEAST_USEFUL else 0.0

    @property
    def nbytes(self) -> int:
        """Bytes that can be gone through in that time."""
        return int(self.share() * _WORKED_PER_SECOND)

    @property
    def reason(self) -> str:
        """Why nothing more is evaluated."""
        return f"the {self.seconds:.1f} s for evaluating constants of this model are used up"

    def spend(self, seconds: float) -> None:
        """Count what was spent."""
        self._left -= seconds

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of this thread in the context."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.spend(time.thread_time() - began)


def time_for(nbytes: int) -> TimeLimit:
    """The time limit of a model that takes so many bytes."""
    return TimeLimit(_LEAST_SECONDS + nbytes / _BYTES_PER_SECOND)
