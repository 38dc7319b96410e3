"""Entry as a session has it open: once for all settings of the constants, or once for each."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.errors import UsageError
from onnxfold.onnxruntime_sessions import CPU, Array, array_of, has_numbers, open_session, ort_value
from onnxfold.runtime.bundles.bundle import ENTRY_FILE, SplitModel
from onnxfold.runtime.bundles.session_options import with_data_below

if TYPE_CHECKING:
    import onnxruntime

logger = logging.getLogger("onnxfold")

_SMALL = 1024
"""Bytes of what onnxruntime may want to read when it optimizes: that is in the model itself."""


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
        specializes: See ``specialize``.
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
        self._taken = {info.name for info in (*manifest.runtime_constants, *manifest.cached)}
        self._lock = threading.Lock()
        self._packed: _PackedEntry | None = None
        self._packs = tuple(providers) == CPU and not (options and options.optimized_model_filepath)

    def refuse(self, names: Iterable[str]) -> None:
        """Refuse values that would replace those of a handle.

        Raises:
            UsageError: One of the names is that of a runtime constant or of a folded tensor.
        """
        if not self._taken.isdisjoint(names):
            name = next(name for name in names if name in self._taken)
            raise UsageError(f"{name!r} is part of the handle and cannot be given with it")

    def specialized(self, bound: Mapping[str, Any]) -> onnxruntime.InferenceSession:
        """Open a session with some inputs turned into weights.

        Args:
            bound: The values of those inputs; what is no array of numbers in the CPU's memory stays
                an input.
        """
        arrays = {name: array_of(value) for name, value in bound.items() if has_numbers(value)}
        try:
            with self._lock:
                if self._packs and self._packed is None:
                    self._packed = _PackedEntry(self._bundle, self._options)
            if self._packed is not None:
                return self._packed.open(arrays)
        except Exception as error:  # onnxruntime raises many classes without a common base
            self._packs = False
            logger.debug("entry is opened without its packed weights: %s", error)
        return self._opened_alone(arrays)

    def _opened_alone(self, arrays: Mapping[str, Array]) -> onnxruntime.InferenceSession:
        """Return the same as a model of its own, each of whose weights onnxruntime
        arranges again.
        """
        import onnx_ir as ir

        from onnxfold.runtime.bundles.opening import open_model

        model = self._bundle.load(ENTRY_FILE)
        graph = model.graph
        inputs = {value.name: value for value in graph.inputs}
        for name, array in arrays.items():
            variable = inputs[name]
            variable.const_value = ir.tensor(array, name=name)
            variable.shape = ir.Shape(array.shape)
            graph.inputs.remove(variable)
            if name not in graph.initializers:
                graph.initializers.add(variable)
        return open_model(model, self._options, self._providers)


class _PackedEntry:
    """Entry as onnxruntime has optimized it, with weights arranged for its kernels, in files.

    Sessions that are opened map these files, so each has only its folded tensors for itself. The
    files are removed with this object.

    Args:
        bundle: The split model.
        options: Session options.

    Raises:
        Exception: onnxruntime does not write them, by one of many classes without a common base.
    """

    def __init__(self, bundle: SplitModel, options: onnxruntime.SessionOptions | None) -> None:
        import onnx

        from onnxfold import files

        self._options = options
        with contextlib.ExitStack() as stack:
            self._folder = Path(stack.enter_context(files.scratch_folder("session")))
            writing = with_data_below("", options)
            writing.optimized_model_filepath = str(self._folder / ENTRY_FILE)
            writing.log_severity_level = 3  # it warns that this is for this machine only
            for name, value in (
                ("optimized_model_external_initializers_file_name", "entry.data"),
                ("optimized_model_external_initializers_min_size_in_bytes", str(_SMALL)),
                ("save_external_prepacked_constant_initializers", "1"),
            ):
                writing.add_session_config_entry(f"session.{name}", value)
            bundle.open(ENTRY_FILE, writing, CPU)
            self._model = onnx.load(self._folder / ENTRY_FILE, load_external_data=False)
            weakref.finalize(self, stack.pop_all().close)

    def open(self, arrays: Mapping[str, Array]) -> onnxruntime.InferenceSession:
        """Open a session in which some inputs are weights, on the memory of these arrays."""
        import onnx
        import onnx_ir as ir

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = model.graph
        inputs = {value.name for value in graph.input}
        arrays = {name: array for name, array in arrays.items() if name in inputs}
        for values in (graph.input, graph.initializer):
            for value in [v for v in values if v.name in arrays]:
                values.remove(value)
        large = {}
        for name, array in arrays.items():
            kind = ir.DataType.from_numpy(array.dtype)
            proto = graph.initializer.add(name=name, data_type=kind, dims=array.shape)
            if array.nbytes <= _SMALL:
                proto.raw_data = ir.tensor(array).tobytes()
            else:
                proto.data_location = onnx.TensorProto.EXTERNAL
                proto.external_data.add(key="location", value="given")
                large[name] = ort_value(array)
        options = with_data_below(str(self._folder), self._options)
        options.add_external_initializers(list(large), list(large.values()))
        session = open_session(model.SerializeToString(), options)
        session.given = large  # onnxruntime reads their memory as long as the session lives
        return session
