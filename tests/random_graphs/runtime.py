"""onnxruntime as the reference: node by node, one thread, for values of every element type."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from .values import Array

_options: ort.SessionOptions | None = None


def options() -> ort.SessionOptions:
    """Nothing is optimized, prepacked, or logged."""
    global _options
    if _options is None:
        _options = ort.SessionOptions()
        _options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        _options.add_session_config_entry("session.disable_prepacking", "1")
        _options.log_severity_level = 4
        _options.intra_op_num_threads = 1
        _options.enable_cpu_mem_arena = False
    return _options


class Session:
    """A model on onnxruntime's CPU provider.

    Raises:
        Exception: onnxruntime refuses the model, by one of many classes without a common base.
    """

    def __init__(self, model: onnx.ModelProto | bytes | str) -> None:
        given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
        self.session = ort.InferenceSession(given, options(), providers=["CPUExecutionProvider"])
        self.outputs = self.session.get_outputs()
        self._quiet = ort.RunOptions()
        self._quiet.log_severity_level = 4
        ends = [*self.session.get_inputs(), *self.outputs]
        self._plain = not any("bfloat16" in e.type or "float8" in e.type for e in ends)

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        """The outputs, as arrays or lists of arrays (None for an empty optional)."""
        if self._plain:
            return self.session.run(None, feeds, self._quiet)
        names = [output.name for output in self.outputs]
        values = {name: _ort_value(feed) for name, feed in feeds.items()}
        found = self.session.run_with_ort_values(names, values, self._quiet)
        return [_array(value) for value in found]


def _ort_value(feed: Any) -> ort.OrtValue:
    if not isinstance(feed, np.ndarray):
        raise TypeError("sequences travel only beside NumPy's own types")
    if feed.dtype.kind != "V" and feed.dtype.isbuiltin:
        return ort.OrtValue.ortvalue_from_numpy(feed)
    elem = onnx.helper.np_dtype_to_tensor_dtype(feed.dtype)
    words = np.ascontiguousarray(feed).view(f"u{feed.dtype.itemsize}").reshape(feed.shape)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, elem)


def _array(value: ort.OrtValue) -> Any:
    text = value.data_type()
    if not value.is_tensor() or not ("bfloat16" in text or "float8" in text):
        return value.numpy()
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    tensor = onnx.TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=content)
    return onnx.numpy_helper.to_array(tensor)


def as_array(value: Any) -> Array:
    """An output as an array; strings as objects."""
    return np.asarray(value)
