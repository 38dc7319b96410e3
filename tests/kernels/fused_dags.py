"""Models of large constants only, drawn by hypothesis."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import onnx
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
    ends = st.integers(-d, d - 1)
    way = draw(st.integers(0, 4))
    if way == 0:
        places = np.int64(draw(ends))
    elif way == 1:  # in order, forwards or backwards
        first, last = sorted([draw(ends) % d, draw(ends) % d])
        places = np.arange(first, last + 1)[:: draw(st.sampled_from([1, -1]))]
    elif way == 2:
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        places = rng.permutation(d)[: draw(st.integers(1, d))]
        places = np.where(rng.random(places.shape) < 0.2, places - d, places)
    else:
        count = draw(st.sampled_from([(1,), (4,), (2, 3), (1, 5), (20,), (3, 1, 4)]))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        places = rng.integers(-d, d, count)
    result = [*shape[:axis], *places.shape, *shape[axis + 1 :]]
    if math.prod(result) > _MOST or len(result) > 6:
        return
    places = places.astype(draw(st.sampled_from([np.int64, np.int32])))
    axis -= draw(st.sampled_from([0, len(shape)]))
    dag.node("Gather", [name, dag.weight(np.asarray(places))], result, dtype, axis=axis)


def pad(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    mode = draw(st.sampled_from(["constant", "constant", "edge", "reflect"]))
    least, most = (-2, 5) if mode == "constant" else (0, 4)
    before = [draw(st.integers(max(least, -d + 1), min(most, d - 1))) for d in shape]
    after = [
        draw(st.integers(max(least, -d + 1 - min(b, 0)), min(most, d - 1)))
        for b, d in zip(before, shape, strict=True)
    ]
    result = [b + d + a for b, d, a in zip(before, shape, after, strict=True)]
    if math.prod(result) > _MOST or min(result) < 1:
        return
    inputs = [name, dag.weight(np.int64([*before, *after]))]
    if mode == "constant" and draw(st.booleans()):
        inputs.append(dag.weight(np.asarray(7, DTYPES[dtype])))
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
