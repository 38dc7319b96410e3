"""onnx's own node tests: where a kernel gives a result, it is the expected one."""

from __future__ import annotations

import re
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from kernel_check import is_nan

from onnxfold.kernels import NotExact, Unfoldable, find


def _cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = []
        for case in collect_testcases(None):
            model = case.model
            if model is None or len(model.graph.node) != 1 or model.graph.node[0].domain:
                continue
            values = [*model.graph.input, *model.graph.output]
            if not all(v.type.HasField("tensor_type") for v in values):
                continue
            opset = next(o.version for o in model.opset_import if o.domain == "")
            if find(model.graph.node[0].op_type, opset) is not None:
                found.append(pytest.param(case, opset, id=case.name))
        return found


CASES = _cases()

_CAST = r"no exact cast from \w+ to \w+"
_SUM = "no NumPy arithmetic for float32"
# What kernels leave to onnxruntime of these cases, and nothing else.
LEFT = {
    "Cast": _CAST,
    "CastLike": _CAST,
    "Mod": r"no NumPy arithmetic for (float16|float32|float64)|onnxruntime computes .* in float64",
    "Range": "no NumPy range of b?float16",
    "ReduceMax": "the extreme of no element",
    "ReduceMin": "the extreme of no element",
    "ReduceProd": _SUM,
    "ReduceSum": _SUM,
}


def _array(value) -> np.ndarray:
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    value = np.asarray(value)
    return value.astype(object) if value.dtype.kind in "US" else value


def _attribute(proto: onnx.AttributeProto):
    attribute = ir.serde.deserialize_attribute(proto)
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy()
    return attribute.value


def test_there_are_many():
    assert len(CASES) > 300


@pytest.mark.parametrize(("case", "opset"), CASES)
def test_case(case, opset):
    node = case.model.graph.node[0]
    types = {v.name: v.type.tensor_type.elem_type for v in case.model.graph.output}
    attributes = {a.name: _attribute(a) for a in node.attribute}
    for given, expected in case.data_sets:
        feeds = dict(zip([v.name for v in case.model.graph.input], given, strict=True))
        inputs = [_array(feeds[name]) if name else None for name in node.input]
        try:
            with np.errstate(all="ignore"):
                results = find(node.op_type, opset)(
                    inputs, attributes, n_outputs=len(node.output), opset=opset
                )
        except NotExact as error:
            assert re.fullmatch(LEFT.get(node.op_type, ""), str(error))
            continue
        except Unfoldable as error:
            pytest.fail(str(error))
        for name, actual, want in zip(node.output, results, expected, strict=True):
            want = _array(want)
            assert actual.shape == want.shape
            dtype = ir.DataType(types[name]).numpy()
            assert actual.dtype == dtype
            if dtype.kind == "O":
                assert actual.tolist() == want.tolist()
                continue
            a, e = actual.astype(np.float64), want.astype(dtype).astype(np.float64)
            same = (a == e) | (is_nan(a) & is_nan(e))
            assert same.all(), (a[~same][:5], e[~same][:5])
