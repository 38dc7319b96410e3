"""Random DAGs of large constants, element-wise and moved about: they have onnxruntime's bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_session import reference_session

from onnxfold import storage
from onnxfold.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.pool import BufferTensor

FLOAT, DOUBLE, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64
DTYPES = {FLOAT: np.float32, DOUBLE: np.float64, INT: np.int64}
LARGE = [(90_001,), (317, 256), (1, 70_001), (40, 33, 70), (5, 20, 1000), (2, 3, 70, 210)]
SMALL = [(), (1,), (256,), (33, 1), (20, 1), (1, 1, 70), (1000,)]
_MOST = 700_000  # elements of a value


@dataclass
class Dag:
    """A model of constants only, made op by op."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    values: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, op_type: str, inputs: list[str], shape, dtype: int, **attributes) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, inputs, [name], **attributes))
        self.values.append((name, tuple(int(d) for d in shape), dtype))

    def model(self, outputs: list[tuple[str, tuple[int, ...], int]]) -> onnx.ModelProto:
        infos = [onnx.helper.make_tensor_value_info(n, t, s) for n, s, t in outputs]
        graph = onnx.helper.make_graph(self.nodes, "g", [], infos, self.weights)
        opsets = [onnx.helper.make_opsetid("", 18)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


BINARY = ["Add", "Sub", "Mul", "Div", "Where"]


def concat(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    axis = draw(st.integers(0, len(shape) - 1))
    fitting = [
        v
        for v in dag.values
        if v[2] == dtype
        and len(v[1]) == len(shape)
        and all(a == b or k == axis for k, (a, b) in enumerate(zip(v[1], shape, strict=True)))
    ]
    parts = [(name, shape, dtype), *draw(st.lists(st.sampled_from(fitting), max_size=2))]
    total = sum(part[1][axis] for part in parts)
    result = [total if k == axis else d for k, d in enumerate(shape)]
    if math.prod(result) < _MOST:
        dag.node("Concat", [part[0] for part in parts], result, dtype, axis=axis)


def gather(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    axis = draw(st.integers(0, len(shape) - 1))
    d = shape[axis]
    count = draw(st.sampled_from([(), (1,), (4,), (2, 3), (20,), (d,)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    places = rng.integers(-d, d, count)
    if count == (d,) and draw(st.booleans()):  # in order, forwards or backwards
        places = np.arange(d)[:: draw(st.sampled_from([1, -1]))]
    result = [*shape[:axis], *count, *shape[axis + 1 :]]
    if math.prod(result) < _MOST:
        places = dag.weight(np.asarray(places, draw(st.sampled_from([np.int64, np.int32]))))
        axis -= draw(st.sampled_from([0, len(shape)]))
        dag.node("Gather", [name, places], result, dtype, axis=axis)


def pad(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    mode = draw(st.sampled_from(["constant", "edge", "reflect"]))
    widths = [[draw(st.integers(0, min(4, d - 1))) for d in shape] for _ in range(2)]
    if mode == "constant" and shape[0] > 3:
        widths[0][0] = draw(st.integers(-2, 5))
    result = [b + d + a for b, d, a in zip(widths[0], shape, widths[1], strict=True)]
    inputs = [name, dag.weight(np.int64(widths).ravel())]
    if mode == "constant" and draw(st.booleans()):
        inputs.append(dag.weight(np.asarray(7, DTYPES[dtype])))
    if math.prod(result) < _MOST:
        dag.node("Pad", inputs, result, dtype, mode=mode)


def tile(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    counts = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    result = [n * d for n, d in zip(counts, shape, strict=True)]
    if math.prod(result) < _MOST:
        dag.node("Tile", [name, dag.weight(np.int64(counts))], result, dtype)


def binary(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    fitting = [v for v in dag.values if v[2] == dtype and fits(v[1], shape)]
    other, other_shape, _ = draw(st.sampled_from(fitting))
    result = np.broadcast_shapes(shape, other_shape)
    if math.prod(result) > _MOST:
        return
    op_type = draw(st.sampled_from(BINARY[:3] if dtype == INT else BINARY))
    if op_type == "Where":
        dag.node("Less", [name, other], result, onnx.TensorProto.BOOL)
        condition = dag.values.pop()[0]
        dag.node("Where", [condition, name, other], result, dtype)
    else:
        dag.node(op_type, [name, other], result, dtype)


def fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False))


def factors(draw, number: int) -> list[int]:
    factors = []
    for prime in (2, 3, 5, 7, 11):
        while number % prime == 0:
            number //= prime
            factors.append(prime)
    factors += [number] if number > 1 else []
    while len(factors) > 3 or (len(factors) > 1 and draw(st.booleans())):
        factors.append(factors.pop(0) * factors.pop(0))
    return factors


def slice_(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    axis = draw(st.integers(0, len(shape) - 1))
    start, step = draw(st.integers(0, shape[axis] - 1)), draw(st.sampled_from([1, 2, 3, -1, -2]))
    stop = shape[axis] if step > 0 else -shape[axis] - 1
    extent = len(range(shape[axis])[start::step])
    arguments = [dag.weight(np.int64([v])) for v in (start, stop, axis, step)]
    result = [extent if k == axis else d for k, d in enumerate(shape)]
    dag.node("Slice", [name, *arguments], result, dtype)


def by_onnxruntime(proto: onnx.ModelProto) -> list[np.ndarray]:
    return reference_session(proto).run(None, {})


def folded(proto: onnx.ModelProto, path, **options) -> list[np.ndarray]:
    """The outputs of the model after folding and saving it."""
    model = storage.from_proto(proto)
    propagation = ConstantPropagation(Options(fold_all=True, **options))
    propagation(model)
    assert len(model.graph) == 0
    assert propagation.outcome.statistics.materialized == sum(
        isinstance(value.const_value, BufferTensor) for value in model.graph.outputs
    )
    storage.save(model, path, fsync=False)
    for value in model.graph.outputs:  # may be streamed again
        assert len(value.const_value.tobytes()) == value.const_value.nbytes
    saved = onnx.load(path)
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in saved.graph.initializer}
    statistics = propagation.outcome.statistics
    assert statistics.live_bytes >= 0
    return [arrays[o.name] for o in saved.graph.output]


def assert_same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
            a, b = np.nan_to_num(a, nan=1.0), np.nan_to_num(b, nan=1.0)
        assert a.tobytes() == b.tobytes()


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
