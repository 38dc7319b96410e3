"""The runtime constants of a session: telling new values from those of the run before."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfold.errors import UsageError
from onnxfold.onnxruntime_sessions import Feed
from onnxfold.runtime.bundles.manifest import Manifest
from onnxfold.runtime.sessions.given import Given

Setting = Mapping[str, Given]
"""Values of runtime constants by name."""


class Constants:
    """What the runtime constants of a split model are, and what is fed for them.

    Attributes:
        known: The constants by name, in order.
        in_entry: Names of those that entry reads itself.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.known = {info.name: info for info in manifest.runtime_constants}
        self.in_entry = self.known.keys() & manifest.entry_inputs
        self._ranked: dict[str, list[tuple[str, int, int]]] = {}  # name, axis and size in the file
        for info in manifest.runtime_constants:
            for axis, dim in enumerate(info.shape or ()):
                if isinstance(dim, str) and dim in manifest.ranks:
                    place = (info.name, axis, manifest.ranks[dim])
                    self._ranked.setdefault(dim, []).append(place)

    def is_same(self, setting: Setting, feed: Mapping[str, Feed]) -> bool:
        """Whether a feed has the constants of a setting, or none."""
        for name in self.known:
            if name in feed:
                given = setting.get(name)
                if given is None or not given.is_same(feed[name]):
                    return False
        return True

    def merged(self, setting: Setting, feed: Mapping[str, Feed]) -> Setting:
        """The constants in a feed, and those of a setting where none are fed."""
        constants = dict(setting)
        for name, info in self.known.items():
            if name in feed and not (name in constants and constants[name].is_same(feed[name])):
                constants[name] = Given(info, feed[name])
        return constants

    def check_ranks(self, setting: Setting) -> None:
        """See that the factors of each adapter have the same rank.

        Raises:
            UsageError: They have not: one may have been left out, which is as in the file.
        """
        for places in self._ranked.values():
            sizes = {
                name: setting[name].feed.shape()[axis] if name in setting else size
                for name, axis, size in places
            }
            if len(set(sizes.values())) > 1:
                ranks = ", ".join(
                    f"{size} of {name!r}{'' if name in setting else ' in the file'}"
                    for name, size in sizes.items()
                )
                raise UsageError(f"the rank of an adapter must be the same: {ranks}")

    def given(self, values: Mapping[str, Feed]) -> Setting:
        """Constants that are folded at once and never compared: only what entry reads is copied.

        Raises:
            UsageError: There is one that is no runtime constant, or cannot have this value.
        """
        for name in values:
            if name not in self.known:
                known = ", ".join(self.known) or "none"
                raise UsageError(f"{name!r} is no runtime constant; there are {known}")
        return {
            name: Given(self.known[name], value, copies=name in self.in_entry)
            for name, value in values.items()
        }
