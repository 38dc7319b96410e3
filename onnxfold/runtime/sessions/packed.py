"""Entry as onnxruntime has optimized it, with weights arranged for its kernels, in files.

Sessions that are made of it map these files: what each needs for itself is what it is given.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.onnxruntime_sessions import CPU, array_of, has_numbers, open_session, ort_value
from onnxfold.runtime.bundles.bundle import ENTRY_FILE, SplitModel
from onnxfold.runtime.bundles.session_options import with_data_below

if TYPE_CHECKING:
    import onnxruntime

_DATA = "entry.data"
_SMALL = 1024
"""Bytes of what onnxruntime may want to read when it optimizes: that is in the model itself."""


class PackedEntry:
    """Entry's files; they go with this object.

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
                ("optimized_model_external_initializers_file_name", _DATA),
                ("optimized_model_external_initializers_min_size_in_bytes", str(_SMALL)),
                ("save_external_prepacked_constant_initializers", "1"),
            ):
                writing.add_session_config_entry(f"session.{name}", value)
            bundle.open(ENTRY_FILE, writing, CPU)
            self._model = onnx.load(self._folder / ENTRY_FILE, load_external_data=False)
            weakref.finalize(self, stack.pop_all().close)

    def open(self, bound: Mapping[str, Any]) -> onnxruntime.InferenceSession:
        """A session in which some inputs are weights, on the memory of these values.

        Args:
            bound: The values of those inputs; what is no array of numbers in the CPU's memory stays
                an input.
        """
        import onnx
        import onnx.numpy_helper

        arrays = {name: array_of(value) for name, value in bound.items() if has_numbers(value)}
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = model.graph
        given = [v for v in graph.input if v.name in arrays]
        names = {v.name for v in given}
        for value in given:
            graph.input.remove(value)
        for default in [i for i in graph.initializer if i.name in names]:
            graph.initializer.remove(default)
        large = {}
        for name, array in arrays.items():
            if name not in names:
                continue
            if array.nbytes <= _SMALL:
                graph.initializer.append(onnx.numpy_helper.from_array(array, name))
                continue
            kind = bound[name].element_type()
            tensor = graph.initializer.add(name=name, data_type=kind, dims=array.shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="given")
            large[name] = ort_value(array)  # onnxruntime takes no memory of its own here
        options = with_data_below(str(self._folder), self._options)
        options.add_external_initializers(list(large), list(large.values()))
        session = open_session(model.SerializeToString(), options)
        session.given = large  # onnxruntime reads their memory as long as the session lives
        return session
