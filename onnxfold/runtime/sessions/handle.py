"""The folded tensors of one setting of the runtime constants, to be run by many callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnxruntime

from onnxfold.onnxruntime_sessions import Feed, ort_value
from onnxfold.runtime.sessions.cache import Folded
from onnxfold.runtime.sessions.entry import Entry


class Binding(onnxruntime.IOBinding):  # type: ignore[misc]
    """As onnxruntime's; what a handle binds can be neither replaced nor taken out.

    Args:
        entry: The session to run.
        feeds: What it is given by the handle.
        refuse: Raises an error for names that a handle alone gives values to.

    Attributes:
        entry: The session to run.
    """

    def __init__(
        self,
        entry: onnxruntime.InferenceSession,
        feeds: Mapping[str, onnxruntime.OrtValue],
        refuse: Callable[[Iterable[str]], None],
    ) -> None:
        super().__init__(entry)
        self.entry = entry
        self._feeds = feeds
        self._refuse = refuse
        self._bind()

    def _bind(self) -> None:
        for name, value in self._feeds.items():
            super().bind_ortvalue_input(name, value)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """See onnxruntime."""
        self._refuse([name])
        super().bind_cpu_input(name, arr_on_cpu)

    def bind_input(self, name: str, *place: Any, **rest: Any) -> None:
        """See onnxruntime."""
        self._refuse([name])
        super().bind_input(name, *place, **rest)

    def bind_ortvalue_input(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """See onnxruntime."""
        self._refuse([name])
        super().bind_ortvalue_input(name, ortvalue)

    def clear_binding_inputs(self) -> None:
        """See onnxruntime; what the handle binds stays."""
        super().clear_binding_inputs()
        self._bind()


class Handle:
    """The folded tensors of one setting of the runtime constants: a tenant, a prompt, an adapter.

    Any number of threads may run it at the same time. It keeps its tensors alive, also when the
    cache has left them out.

    Attributes:
        nbytes: Bytes of its folded tensors.
        owner: The session that made it, for itself to know.
    """

    def __init__(
        self, owner: object, entry: Entry, folded: Sequence[Folded], bound: dict[str, Any]
    ) -> None:
        self.owner = owner
        self.nbytes = sum(part.nbytes for part in folded)
        self._entry = entry
        self._bound = bound
        self._lock = threading.Lock()
        self._opened = None if entry.specializes else (entry.session, bound)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> Sequence[Any]:
        """Run entry on these tensors, see `Session.run`; runtime constants are not fed."""
        self._entry.refuse(input_feed)
        session, own = self._open()
        names = output_names or self._entry.outputs
        return session.run(names, {**input_feed, **own}, run_options)  # type: ignore[no-any-return]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> Sequence[onnxruntime.OrtValue]:
        """Return the same with onnxruntime's values in and out."""
        self._entry.refuse(input_dict_ort_values)
        session, own = self._open()
        feeds = {**{n: ort_value(v) for n, v in input_dict_ort_values.items()}, **own}
        return session.run_with_ort_values(  # type: ignore[no-any-return]
            output_names or self._entry.outputs, feeds, run_options
        )

    def io_binding(self) -> Binding:
        """Return a binding for entry with these tensors bound."""
        return Binding(*self._open(), self._entry.refuse)

    def tensors(self) -> dict[str, onnxruntime.OrtValue]:
        """Return what entry is given besides its own inputs, by name."""
        return dict(self._bound)

    def _open(self) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        """Return the session to run, and what it is fed of these tensors."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    session = self._entry.specialized(self._bound)
                    read = {value.name for value in session.get_inputs()}
                    own = {name: v for name, v in self._bound.items() if name in read}
                    self._opened = session, own
        return self._opened
