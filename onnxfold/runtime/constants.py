"""The runtime constants of a session: which values it was given last, and their folded tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfold.errors import UsageError
from onnxfold.runtime.cache import FoldCache, Folded
from onnxfold.runtime.folding import FoldGroup
from onnxfold.runtime.handle import Handle
from onnxfold.runtime.recent import RecentDigests
from onnxfold.runtime.values import Feed, Seen, digest_of, ort_value

VERIFY = ("sample", "identity", "content")


def check_verify(verify: str) -> None:
    """Refuse a way to trust constants that there is not.

    Raises:
        UsageError: It is none of `VERIFY`.
    """
    if verify not in VERIFY:
        raise UsageError(f"verify must be one of {', '.join(VERIFY)}, got {verify!r}")


@dataclass(frozen=True)
class Current:
    """What a session folded last: the values given for the constants, and the handle."""

    constants: dict[str, Feed]
    seen: list[tuple[str, Seen]]
    handle: Handle


class Constants:
    """Tells new values of the constants from those of the run before, and has the cache fold them.

    Args:
        names: The runtime constants, in order.
        in_entry: Those of them that entry reads itself.
        verify: How far a value that is the very same object is trusted, see `Session`.
        cache: Holds folded tensors by the content of what they were made of.
    """

    def __init__(
        self, names: Sequence[str], in_entry: Sequence[str], verify: str, cache: FoldCache
    ) -> None:
        self.names = list(names)
        self.known = frozenset(names)
        self.cache = cache
        self._in_entry = list(in_entry)
        self._verify = verify
        self._recent = RecentDigests()

    def is_current(self, current: Current, feed: Mapping[str, Feed]) -> bool:
        """Whether a feed has the constants of the run before, or none."""
        for name, seen in current.seen:
            given = feed.get(name)
            if given is not None and not self._is_same(seen, given):
                return False
        if len(current.seen) == len(self.names):
            return True
        return not any(n in feed and n not in current.constants for n in self.names)

    def _is_same(self, seen: Seen, given: Feed) -> bool:
        if self._verify == "identity":
            return given is seen.value
        return self._verify == "sample" and seen.is_same(given)

    def merged(self, current: Current | None, feed: Mapping[str, Feed]) -> dict[str, Feed]:
        """The constants in a feed, and those of the run before where none are fed."""
        constants = dict(current.constants) if current is not None else {}
        constants.update((name, feed[name]) for name in self.names if name in feed)
        return constants

    def check_names(self, given: Mapping[str, Feed]) -> None:
        """Refuse what is no runtime constant.

        Raises:
            UsageError: There is one.
        """
        unknown = [name for name in given if name not in self.known]
        if unknown:
            known = ", ".join(self.names) or "none"
            raise UsageError(f"{unknown[0]!r} is no runtime constant; there are {known}")

    def fold(
        self, constants: Mapping[str, Feed], groups: Sequence[FoldGroup], *, copies: bool = False
    ) -> tuple[list[Folded], dict[str, Any]]:
        """The folded tensors, from the cache or made now; and all that entry is given, by name.

        Args:
            constants: Every constant that has no default value.
            groups: What makes the tensors.
            copies: Copy what entry reads of the constants itself: the arrays may be changed.
        """
        trusting = self._verify != "content"
        digests: dict[str, bytes] = {}

        def digest(name: str) -> bytes:
            if name not in digests:
                value = constants[name]
                digests[name] = self._recent.of(value) if trusting else digest_of(value)
            return digests[name]

        folded = []
        for group in groups:
            given = [name for name in group.constants if name in constants]
            key = (*group.key, tuple((name, digest(name)) for name in given))
            run = group.run
            folded.append(self.cache.get(key, lambda run=run: run(constants)))  # type: ignore[misc]
        bound = {name: value for part in folded for name, value in part.values.items()}
        for name in self._in_entry:
            if name in constants:
                value = constants[name]
                own = copies and isinstance(value, np.ndarray)
                bound[name] = ort_value(np.array(value, order="C") if own else value)
        return folded, bound
