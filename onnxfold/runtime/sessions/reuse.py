"""Detect input values that repeat, to select the inputs to hold constant and the values to fold.

Values are compared by their keys, see `onnxfold.runtime.sessions.constant_values.content_key`. The
classes are not thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence

from onnxfold.runtime.sessions.constant_values import content_key
from onnxfold.support.onnxruntime_sessions import Feed

MOST_NEW = 64
"""Number of successive runs with new values after which values are not expected to repeat.

If several threads start a sequence at the same time, each of their first runs has a new value. A
session seldom has more threads than this number. `InputWatch` remembers as many values per input.
"""

_DEFAULT = "default"
"""Key of an input that is not fed and therefore has its default value."""


class InputWatch:
    """Find the inputs whose values repeat in successive runs.

    Args:
        sets: The sets of inputs that are worth holding constant, sorted by descending share of the
            work.
        required: The inputs without a default value. They are never all held constant.
    """

    def __init__(self, sets: Sequence[frozenset[str]], required: frozenset[str]) -> None:
        self.changes = 0
        """Number of successive runs in which no element of ``sets`` repeated."""
        self._sets = sets
        self._required = required
        watched: frozenset[str] = frozenset().union(*sets)
        self._recent: dict[str, OrderedDict[Hashable, None]] = {
            name: OrderedDict() for name in sorted(watched)
        }

    def observe(self, feed: Mapping[str, Feed]) -> frozenset[str]:
        """Record the values of a run, and return the inputs to hold constant.

        An input whose value has no key, see `content_key`, does not repeat.

        Returns:
            The union of the sets that repeated. If the union contains all required inputs, the
            first set that repeated. If no set repeated, an empty set.
        """
        repeated = set()
        for name, recent in self._recent.items():
            key = content_key(feed[name]) if name in feed else _DEFAULT
            if key is None:
                continue
            if key in recent:
                repeated.add(name)
                recent.move_to_end(key)
                continue
            recent[key] = None
            if len(recent) > MOST_NEW:
                recent.popitem(last=False)
        worthwhile = [names for names in self._sets if names <= repeated]
        self.changes = 0 if worthwhile else self.changes + 1
        if not worthwhile:
            return frozenset()
        union: frozenset[str] = frozenset().union(*worthwhile)
        return worthwhile[0] if self._required <= union else union


class ValueHistory:
    """Predict whether a value will be used again.

    A value that was used before is expected to be used again. A new value is expected to be used
    again if it is the first value, or if the previous value was used at least twice.

    Args:
        capacity: Number of values to remember. It should not exceed the number of values whose
            folded tensors fit in the cache. With a larger capacity, each value of a long cycle
            would be folded in each cycle.
    """

    def __init__(self, capacity: int) -> None:
        self.new_values = 0
        """Number of successive runs with new values."""
        self._capacity = capacity
        self._uses: OrderedDict[Hashable, int] = OrderedDict()
        self._last: Hashable | None = None

    def add(self, key: Hashable) -> bool:
        """Record the value of a run, and return whether to fold the value."""
        expects_repetition = self._last is None or self._uses.get(self._last, 0) >= 2
        uses = self._uses.pop(key, 0) + 1
        self._uses[key] = uses
        self._last = key
        if len(self._uses) > self._capacity:
            self._uses.popitem(last=False)
        if uses > 1:
            self.new_values = 0
            return True
        self.new_values += 1
        return expects_repetition
