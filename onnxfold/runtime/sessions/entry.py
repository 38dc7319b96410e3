"""Entry as a session has it open: once for all settings of the constants, or once for each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfold.errors import UsageError
from onnxfold.onnxruntime_sessions import CPU, array_of, has_numbers
from onnxfold.runtime.bundles.bundle import ENTRY_FILE, SplitModel
from onnxfold.runtime.sessions.packed import PackedEntry

if TYPE_CHECKING:
    import onnxruntime

logger = logging.getLogger("onnxfold")


class Entry:
    """Entry, to be run with the folded tensors of a handle.

    Args:
        bundle: The split model.
        options: Session options.
        providers: Execution providers, as onnxruntime takes them.
        specialize: Whether each handle has a session of its own, with its tensors as weights:
            onnxruntime can then arrange them for its kernels.

    Attributes:
        session: onnxruntime's session, to which folded tensors are fed.
        outputs: Names of the original's outputs, in order.
    """

    def __init__(
        self,
        bundle: SplitModel,
        options: onnxruntime.SessionOptions | None,
        providers: Sequence[Any],
        specialize: bool,
    ) -> None:
        self._bundle = bundle
        self._options = options
        self._providers = providers
        self.specializes = specialize
        self.session = bundle.open(ENTRY_FILE, options, providers)
        manifest = bundle.manifest
        self.outputs = list(manifest.outputs)
        self._lock = threading.Lock()
        self._packed: PackedEntry | None = None
        self._packs = tuple(providers) == CPU and not (options and options.optimized_model_filepath)
        self._taken = {info.name for info in (*manifest.runtime_constants, *manifest.cached)}

    def refuse(self, names: Iterable[str]) -> None:
        """Refuse what would take the place of a handle's own.

        Raises:
            UsageError: One of the names is that of a runtime constant or of a folded tensor.
        """
        if not self._taken.isdisjoint(names):
            name = next(name for name in names if name in self._taken)
            raise UsageError(f"{name!r} is part of the handle and cannot be given with it")

    def specialized(self, bound: Mapping[str, Any]) -> onnxruntime.InferenceSession:
        """A session with some inputs turned into weights.

        Args:
            bound: The values of those inputs; what is no array of numbers in the CPU's memory stays
                an input.
        """
        packed = self._packed_entry()
        if packed is not None:
            try:
                return packed.open(bound)
            except Exception as error:  # onnxruntime raises many classes without a common base
                logger.debug("entry is opened without its packed weights: %s", error)
        return self._opened_alone(bound)

    def _packed_entry(self) -> PackedEntry | None:
        """Entry with its weights in files that all sessions map; None where that cannot be."""
        with self._lock:
            if not self._packs:
                return None
            if self._packed is None:
                try:
                    self._packed = PackedEntry(self._bundle, self._options)
                except Exception as error:  # the same, and a full disk
                    self._packs = False
                    logger.debug("entry cannot be packed: %s", error)
            return self._packed

    def _opened_alone(self, bound: Mapping[str, Any]) -> onnxruntime.InferenceSession:
        """The same as a model of its own, each of whose weights onnxruntime arranges again."""
        import onnx_ir as ir

        from onnxfold.runtime.bundles.opening import open_model

        model = self._bundle.load(ENTRY_FILE)
        graph = model.graph
        inputs = {value.name: value for value in graph.inputs}
        for name, value in bound.items():
            if not has_numbers(value):
                continue
            variable, array = inputs[name], array_of(value)
            variable.const_value = ir.tensor(array, name=name)
            variable.shape = ir.Shape(array.shape)
            graph.inputs.remove(variable)
            if name not in graph.initializers:
                graph.initializers.add(variable)
        return open_model(model, self._options, self._providers)
