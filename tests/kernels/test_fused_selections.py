"""Selections in chains of views and element-wise work: the bits of onnxruntime, tile by tile."""

from __future__ import annotations

import math

import numpy as np
import onnx
from fused_dags import (
    DOUBLE,
    FLOAT,
    INT,
    Dag,
    assert_same,
    by_onnxruntime,
    compress,
    factors,
    folded,
    gather,
    pad,
    slice_,
    tile,
    tiny_pieces,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HALF, BYTE = onnx.TensorProto.FLOAT16, onnx.TensorProto.INT8


@st.composite
def selected_chains(draw) -> onnx.ModelProto:
    """One value that is selected from, moved, reshaped and scaled again and again."""
    dag = Dag()
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape = tuple(draw(st.lists(st.sampled_from([2, 3, 4, 6, 8, 12]), min_size=1, max_size=4)))
    dtype = draw(st.sampled_from([FLOAT, DOUBLE, INT, HALF, BYTE]))
    array = rng.integers(-100, 100, shape)
    array = array.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
    dag.values.append((dag.weight(array), shape, dtype))
    for _ in range(draw(st.integers(2, 8))):
        name, shape, dtype = dag.values[-1]
        step = draw(st.sampled_from("ggrrtttsmcp"))
        if step == "g":
            gather(draw, dag, name, shape, dtype) if shape else None
        elif step == "p" and shape and dtype in (FLOAT, DOUBLE, INT):
            draw(st.sampled_from([pad, tile, compress]))(draw, dag, name, shape, dtype)
        elif step == "r":
            target = draw(st.permutations(factors(draw, math.prod(shape))))
            dag.node("Reshape", [name, dag.weight(np.int64(target))], target, dtype)
        elif step == "t" and shape:
            perm = draw(st.permutations(range(len(shape))))
            dag.node("Transpose", [name], [shape[p] for p in perm], dtype, perm=list(perm))
        elif step == "s" and shape:
            slice_(draw, dag, name, shape, dtype)
        elif step == "c":
            to = draw(st.sampled_from([FLOAT, DOUBLE]))
            dag.node("Cast", [name], shape, to, to=to)
        elif dtype in (FLOAT, DOUBLE, INT) and shape:
            scale = rng.integers(1, 5, shape[-1:]).astype(np.int64)
            if dtype != INT:
                scale = scale.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype))
            dag.node("Mul", [name, dag.weight(scale)], shape, dtype)
    if len(dag.values) == 1:
        dag.node("Identity", [dag.values[0][0]], *dag.values[0][1:])
    return dag.model([dag.values[-1]])


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(selected_chains(), st.sampled_from([1, 3]), st.sampled_from([8, 1 << 12]))
def test_chains_of_selections(tmp_path_factory, proto, threads, page):
    path = tmp_path_factory.mktemp("selected") / "out.onnx"
    with tiny_pieces(threads, page):
        assert_same(folded(proto, path), by_onnxruntime(proto))
