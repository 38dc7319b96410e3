"""The folded tensors of one setting of the runtime constants, to be run by many callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

    __slots__ = ("_bound", "_folded", "_lock", "_run", "_session", "nbytes")

    def __init__(self, session: Session, folded: Sequence[Folded], bound: dict[str, Any]) -> None:
        self._session = session
        self._folded = folded
        self._bound = bound
        self._lock = threading.Lock()
        self._run: Callable[..., Any] | None = None if session.specializes else session.entry.run
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
        """What entry is given besides its own inputs, by name."""
        return dict(self._bound)

    def runner(self, open_entry: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
        """The function that runs entry on these tensors.

        Args:
            open_entry: Makes a session that has the given tensors as weights; called at the first
                run if the handle is to have one.
        """
        return self._run or self._own_runner(open_entry)

    def _own_runner(self, open_entry: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
        with self._lock:
            if self._run is None:
                entry = open_entry(self._bound)
                self._bound = {}
                self._run = entry.run
            return self._run
