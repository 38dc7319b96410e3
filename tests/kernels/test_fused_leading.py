"""Reductions over the first axes of large constants: row after row, with onnxruntime's bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fused_dags import Dag, assert_same, by_onnxruntime, folded

from onnxfold.kernels.fused import streams

SUMS = ["ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd"]
SHAPES = [(1031, 1500), (3, 700_001), (300_007, 7), (24, 37, 2003), (2, 2, 600_001)]


@pytest.fixture
def reductions(monkeypatch) -> list[str]:
    """The ops of reductions that were done row by row."""
    done: list[str] = []
    reduce_rows = streams.reduce_rows

    def noting(op_type, *arguments):
        result = reduce_rows(op_type, *arguments)
        done.append(op_type)
        return result

    monkeypatch.setattr(streams, "reduce_rows", noting)
    return done


def model(array: np.ndarray, op_types: list[str], axes: list[int], moved: bool) -> onnx.ModelProto:
    """Some reductions of the negated array; ``moved``: it lies the other way round in memory."""
    dag = Dag()
    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    shape = array.shape
    if moved:
        perm = list(range(len(shape)))[::-1]
        dag.node("Transpose", [dag.weight(np.ascontiguousarray(array.T))], shape, dtype, perm=perm)
    else:
        dag.node("Identity", [dag.weight(array)], shape, dtype)
    dag.node("Neg", [dag.values[-1][0]], shape, dtype)
    name = dag.values[-1][0]
    left = [1 if k in axes else extent for k, extent in enumerate(shape)]
    where = dag.weight(np.int64(axes))
    for op_type in op_types:
        dag.node(op_type, [name, where], left, dtype)
    return dag.model(dag.values[-len(op_types) :])


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_sums_go_row_by_row(tmp_path, reductions, dtype, shape, moved):
    rng = np.random.default_rng(len(shape))
    array = (1 + rng.standard_normal(shape, np.float32) / 64).astype(dtype)
    axes = [0, 1] if len(shape) == 3 else [0]
    op_types = ["ReduceSum", "ReduceMean"] if dtype == np.float64 else SUMS
    proto = model(array, op_types, axes, moved)
    assert_same(folded(proto, tmp_path / "out.onnx"), by_onnxruntime(proto))
    large = array.nbytes >= streams.STREAMED_FROM
    assert sorted(reductions) == (sorted(op_types) if large else [])


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.int8])
def test_extremes_of_columns(tmp_path, reductions, dtype):
    rng = np.random.default_rng(0)
    array = rng.integers(-100, 100, (2111, 2003)).astype(dtype)
    proto = model(array, ["ReduceMax", "ReduceMin"], [0], moved=True)
    assert_same(folded(proto, tmp_path / "out.onnx"), by_onnxruntime(proto))
    assert sorted(reductions) == ["ReduceMax", "ReduceMin"]


@pytest.mark.parametrize("special", [np.nan, 0.0, -0.0])
def test_what_has_no_order_is_left_to_onnxruntime(tmp_path, reductions, special):
    array = np.random.default_rng(0).random((1031, 1500), np.float32) + 1
    array[:, 7] = special
    array[500, 7] *= -1
    proto = model(array, ["ReduceMax"], [0], moved=False)
    assert_same(folded(proto, tmp_path / "out.onnx"), by_onnxruntime(proto))
    assert not reductions
