"""The folded tensors of one setting of the runtime constants, to be run by many callers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfold.errors import UsageError
from onnxfold.runtime.cache import Folded
from onnxfold.runtime.values import Feed

if TYPE_CHECKING:
    import onnxruntime

    from onnxfold.runtime.session import Session


class Handle:
    """The folded tensors of one setting of the runtime constants: a tenant, a prompt, an adapter.

    Any number of threads may run it at the same time. It keeps its tensors alive, also when the
    cache has left them out.

    Attributes:
        nbytes: Bytes of its folded tensors.
    """

    __slots__ = ("_bound", "_entry", "_feeds", "_folded", "_lock", "_session", "nbytes")

    def __init__(self, session: Session, folded: Sequence[Folded], bound: dict[str, Any]) -> None:
        self._session = session
        self._folded = folded
        self._bound = bound
        self._lock = threading.Lock()
        self._entry = None if session.specializes else session.entry
        self._feeds = bound
        self.nbytes = sum(part.nbytes for part in folded)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> Sequence[Any]:
        """Run entry on these tensors, see `Session.run`; runtime constants are not fed."""
        return self._session.run(output_names, input_feed, run_options, handle=self)

    def tensors(self) -> dict[str, onnxruntime.OrtValue]:
        """What entry is given besides its own inputs, by name; strings as arrays."""
        return dict(self._bound)

    def opened(self, session: Session) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        """Entry for these tensors, and what it is fed of them.

        Args:
            session: The session that runs it.

        Raises:
            UsageError: The handle is of another session.
        """
        if session is not self._session:
            raise UsageError("the handle is of another session")
        entry = self._entry
        if entry is None:
            with self._lock:
                if self._entry is None:
                    made = session.open_specialized(self._bound)
                    read = {value.name for value in made.get_inputs()}
                    self._feeds = {n: v for n, v in self._bound.items() if n in read}
                    self._entry = made
                entry = self._entry
        return entry, self._feeds
