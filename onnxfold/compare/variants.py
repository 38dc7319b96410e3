"""A model that also gives out values within, written for a runtime."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold import files, storage

if TYPE_CHECKING:
    from typing_extensions import Self

_IN_MEMORY = 64 << 20  # bytes of a model that is given to the runtime as bytes


class Variants:
    """Variants of one model that differ in their outputs.

    A large model, or one with external data, is written to a temporary folder once, with its
    weights as external data to which all variants refer.

    Attributes:
        model: The model whose values are given out: as given, or loaded from that folder.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._folder: str | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        is_external = bool(self.model.meta.get(storage.EXTERNAL_KEY))
        if is_external or storage.model_bytes(self.model) > _IN_MEMORY:
            folder = self._stack.enter_context(files.scratch_folder("bisect"))
            base = os.path.join(folder, "base.onnx")
            storage.save(self.model, base, external_data=True, fsync=False)
            self.model = storage.load(base)
            self._folder = folder
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def giving_out(self, values: Sequence[ir.Value]) -> Iterator[str | bytes]:
        """The model with these outputs as well, as a runtime takes it: bytes, or a path."""
        outputs = self.model.graph.outputs
        given = len(outputs)
        outputs.extend(value for value in values if not value.is_graph_output())
        try:
            if self._folder is None:
                source: str | bytes = storage.to_proto(self.model).SerializeToString()
            else:
                source = os.path.join(self._folder, "variant.onnx")
                storage.save(self.model, source, share_weights=True, fsync=False)
        finally:
            while len(outputs) > given:  # deleting a slice would leave them marked as outputs
                outputs.pop()
        yield source
