"""A binding of memory to entry's inputs and outputs in which folded tensors have their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnxruntime


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
