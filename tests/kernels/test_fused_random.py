"""Random DAGs of large constants, element-wise and moved about: they have onnxruntime's bits."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from fused_dags import (
    DOUBLE,
    DTYPES,
    FLOAT,
    INT,
    LARGE,
    SMALL,
    Dag,
    assert_same,
    binary,
    by_onnxruntime,
    concat,
    factors,
    folded,
    gather,
    pad,
    slice_,
    tile,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxfold import storage
from onnxfold.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation

UNARY = ["Neg", "Abs", "Relu", "Sqrt", "Floor", "Sign", "Identity", "Exp"]
REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"]


@st.composite
def dags(draw) -> onnx.ModelProto:
    dag = Dag()
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(st.sampled_from(LARGE if not dag.weights else LARGE + SMALL))
        dtype = draw(st.sampled_from([FLOAT, FLOAT, DOUBLE, INT]))
        array = (rng.standard_normal(shape) * 5).astype(DTYPES[dtype])
        if array.size > 3 and draw(st.booleans()) and dtype != INT:
            array.reshape(-1)[:3] = [np.nan, -0.0, np.inf]
        name = dag.weight(array)
        dag.values.append((name, shape, dtype))
    for _ in range(draw(st.integers(3, 14))):
        _step(draw, dag)
    made = [v for v in dag.values if v[0].startswith("v")]
    others = [v for v in made[:-1] if draw(st.integers(0, 3)) == 0]
    if not made:
        dag.node("Identity", [dag.values[0][0]], *dag.values[0][1:])
        made = dag.values[-1:]
    return dag.model([*others, made[-1]])


def _step(draw, dag: Dag) -> None:
    last = draw(st.integers(0, 3))  # mostly go on where the last one ended
    name, shape, dtype = dag.values[-1] if last else draw(st.sampled_from(dag.values))
    kind = draw(st.integers(0, 15))
    if kind <= 1 and dtype != INT:
        dag.node(draw(st.sampled_from(UNARY)), [name], shape, dtype)
    elif kind <= 4:
        binary(draw, dag, name, shape, dtype)
    elif kind == 5:
        to = draw(st.sampled_from([FLOAT, DOUBLE]))
        dag.node("Cast", [name], shape, to, to=to)
    elif kind == 6 and shape:
        perm = draw(st.permutations(range(len(shape))))
        dag.node("Transpose", [name], [shape[p] for p in perm], dtype, perm=list(perm))
    elif kind == 7:
        target = draw(st.permutations(factors(draw, math.prod(shape))))
        dag.node("Reshape", [name, dag.weight(np.int64(target))], target, dtype)
    elif kind == 8 and shape:
        slice_(draw, dag, name, shape, dtype)
    elif kind == 9 and math.prod(shape) < 100_000:
        target = [*draw(st.lists(st.sampled_from([1, 2, 5]), max_size=1)), *shape]
        target = [draw(st.sampled_from([3, 4])) if d == 1 else d for d in target]
        dag.node("Expand", [name, dag.weight(np.int64(target))], target, dtype)
    elif kind == 10 and shape and dtype != INT:
        axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
        axes = draw(st.sampled_from([axes, list(range(len(shape)))]))
        left = [1 if k in axes else d for k, d in enumerate(shape)]
        op_type = draw(st.sampled_from(REDUCTIONS))
        dag.node(op_type, [name, dag.weight(np.int64(axes))], left, dtype)
    elif kind >= 12 and shape:
        draw(st.sampled_from([gather, pad, tile]))(draw, dag, name, shape, dtype)
    elif shape:
        concat(draw, dag, name, shape, dtype)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(dags(), st.sampled_from([None, 1 << 21]))
def test_what_is_computed_in_blocks_has_the_bits_of_the_whole(tmp_path_factory, proto, limit):
    path = tmp_path_factory.mktemp("dag") / "out.onnx"
    assert_same(folded(proto, path, memory_limit=limit), by_onnxruntime(proto))


@pytest.mark.parametrize("lead", range(0, 64, 4))
def test_sums_do_not_depend_on_where_a_weight_lies_in_its_file(tmp_path, lead):
    """Too small for pieces: onnxruntime gets all of it, and it may begin at any byte."""
    array = np.random.default_rng(lead).standard_normal((33, 37), np.float32)
    dag = Dag()
    weight = dag.weight(array)
    dag.node("ReduceMean", [weight, dag.weight(np.int64([0, 1]))], [1, 1], FLOAT)
    proto = dag.model([dag.values[-1]])
    expected = by_onnxruntime(proto)
    (tensor_proto,) = [t for t in proto.graph.initializer if t.name == weight]
    (tmp_path / "in.data").write_bytes(b"\0" * lead + array.tobytes())
    tensor_proto.ClearField("raw_data")
    tensor_proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "in.data"), ("offset", lead), ("length", array.nbytes)):
        tensor_proto.external_data.add(key=key, value=str(value))
    onnx.save(proto, tmp_path / "in.onnx")
    model = storage.load(tmp_path / "in.onnx")
    ConstantPropagation(Options(fold_all=True))(model)
    assert_same([model.graph.outputs[0].const_value.numpy()], expected)
