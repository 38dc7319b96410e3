"""onnxruntime as the reference: node by node, and sums in the order of the original."""

from __future__ import annotations

import functools
import os

import onnx
import onnx.parser
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import Fail


def reference_options() -> ort.SessionOptions:
    """Nothing is optimized, one thread, and nothing is logged."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def reference_session(model: onnx.ModelProto | str | os.PathLike[str]) -> ort.InferenceSession:
    """A session on the CPU provider for a model, or for the file that it is in."""
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return ort.InferenceSession(given, reference_options(), providers=["CPUExecutionProvider"])


@functools.cache
def knows(opset: int) -> bool:
    """Whether onnxruntime runs models of an opset: older releases do not know the newest."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}]>'
    text = f"{head} g (float[1] x) => (float[1] y) {{ y = Identity (x) }}"
    try:
        reference_session(onnx.parser.parse_model(text))
    except Fail:
        return False
    return True
