"""Run models on onnxruntime without graph optimizations and with one thread, as the reference.

`same_bits` compares other results with those of the reference.
"""

import functools
import os
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from onnxfold.support.onnxruntime_sessions import array_of, is_foreign, ort_value

OLD_ONNXRUNTIME = ort.__version__.startswith("1.23.")
"""Whether onnxruntime is release 1.23: the oldest supported, and the last for Python 3.10."""


def reference_options() -> ort.SessionOptions:
    """Return options for one thread, without graph optimizations, prepacking and an arena.

    Only fatal errors are logged.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    return options


def reference_session(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> Any:
    """Return a session on the CPU provider for a model, its bytes, or the path of its file."""
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return ort.InferenceSession(given, reference_options(), providers=["CPUExecutionProvider"])


class Reference:
    """Runs a model on onnxruntime's CPU provider, for arrays of every element type.

    Raises:
        Exception: onnxruntime rejects the model. The classes of onnxruntime's errors have no common
            base.
    """

    def __init__(self, model: onnx.ModelProto | bytes | str) -> None:
        self.session = reference_session(model)
        self.outputs = self.session.get_outputs()
        self._quiet = ort.RunOptions()
        self._quiet.log_severity_level = 4
        ends = [*self.session.get_inputs(), *self.outputs]
        self._is_plain = not any(is_foreign(end.type) for end in ends)

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        """Return the outputs as arrays or lists of arrays; an empty optional is None."""
        if self._is_plain:
            return self.session.run(None, feeds, self._quiet)
        names = [output.name for output in self.outputs]
        arrays = {n: f if isinstance(f, list) else np.asarray(f) for n, f in feeds.items()}
        values = {name: ort_value(feed) for name, feed in arrays.items()}
        found = self.session.run_with_ort_values(names, values, self._quiet)
        return [array_of(value) for value in found]


@functools.cache
def knows(opset: int) -> bool:
    """Return whether onnxruntime supports an opset. Older releases reject the newest opsets."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    text = f"{head} g (float[1] x) => (float[1] y) {{ y = Identity (x) }}"
    try:
        reference_session(onnx.parser.parse_model(text))
    except Fail:
        return False
    return True


def same_bits(want: Any, got: Any) -> bool:
    """Return whether two results are equal bit for bit, except that all NaNs are equal.

    A result is an array, a list of results, or None for an empty optional.
    """
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and all(map(same_bits, want, got))
    if want is None or got is None or isinstance(want, list) or isinstance(got, list):
        return want is got
    want, got = np.asarray(want), np.asarray(got)
    if (want.shape, want.dtype) != (got.shape, got.dtype):
        return False
    if want.dtype == object or want.dtype.kind in "US":
        return want.tolist() == got.tolist()
    if want.tobytes() == got.tobytes():
        return True
    if want.dtype.kind not in "fV":
        return False
    with np.errstate(all="ignore"):
        left = want.astype(np.float64)
        right = got.astype(np.float64)
    equal = (left == right) & (np.signbit(left) == np.signbit(right))
    return bool((equal | (np.isnan(left) & np.isnan(right))).all())
