"""The runtime constants of a session: which values it was given last, and their folded tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxfold.errors import UsageError
from onnxfold.runtime.bundle import TensorInfo
from onnxfold.runtime.cache import FoldCache, Folded
from onnxfold.runtime.folding import FoldGroup
from onnxfold.runtime.given import Given
from onnxfold.runtime.handle import Handle
from onnxfold.runtime.values import Feed


@dataclass(frozen=True)
class Current:
    """What a session folded last: the values given for the constants, and the handle."""

    constants: dict[str, Given]
    handle: Handle


class Constants:
    """Tells new values of the constants from those of the run before, and has the cache fold them.

    Args:
        infos: The runtime constants, in order.
        in_entry: Names of those of them that entry reads itself.
        cache: Holds folded tensors by the content of what they were made of.
    """

    def __init__(
        self, infos: Sequence[TensorInfo], in_entry: Sequence[str], cache: FoldCache
    ) -> None:
        self.known = {info.name: info for info in infos}
        self.cache = cache
        self._in_entry = set(in_entry)

    def is_current(self, current: Current, feed: Mapping[str, Feed]) -> bool:
        """Whether a feed has the constants of the run before, or none."""
        for name in self.known:
            if name in feed:
                given = current.constants.get(name)
                if given is None or not given.is_same(feed[name]):
                    return False
        return True

    def merged(self, current: Current | None, feed: Mapping[str, Feed]) -> dict[str, Given]:
        """The constants in a feed, and those of the run before where none are fed."""
        constants = dict(current.constants) if current is not None else {}
        for name, info in self.known.items():
            if name in feed and not (name in constants and constants[name].is_same(feed[name])):
                constants[name] = Given(info, feed[name])
        return constants

    def given(self, values: Mapping[str, Feed]) -> dict[str, Given]:
        """Constants that are folded at once and never compared: only what entry reads is copied.

        Raises:
            UsageError: There is one that is no runtime constant, or cannot have this value.
        """
        for name in values:
            if name not in self.known:
                known = ", ".join(self.known) or "none"
                raise UsageError(f"{name!r} is no runtime constant; there are {known}")
        return {
            name: Given(self.known[name], value, copies=name in self._in_entry)
            for name, value in values.items()
        }

    def fold(
        self, constants: Mapping[str, Given], groups: Sequence[FoldGroup]
    ) -> tuple[list[Folded], dict[str, Any]]:
        """The folded tensors, from the cache or made now; and all that entry is given, by name.

        Args:
            constants: Every constant that has no default value.
            groups: What makes the tensors.
        """
        values = {name: given.value for name, given in constants.items()}
        folded = []
        for group in groups:
            known = [name for name in group.constants if name in constants]
            key = (*group.key, tuple((name, constants[name].digest) for name in known))
            folded.append(self.cache.get(key, lambda run=group.run: run(values)))  # type: ignore[misc]
        bound = {name: value for part in folded for name, value in part.values.items()}
        bound.update((n, given.feed) for n, given in constants.items() if n in self._in_entry)
        return folded, bound
