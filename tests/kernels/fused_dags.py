"""Models of constants only, drawn by hypothesis, and what becomes of them in tiny pieces."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import strategies as st
from reference_session import reference_session

from onnxfold import storage
from onnxfold.kernels import evaluator
from onnxfold.kernels.streams import build, plan, reductions, sources
from onnxfold.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.pool import BufferTensor, parallel, pool, tensor

FLOAT, DOUBLE, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64
DTYPES = {FLOAT: np.float32, DOUBLE: np.float64, INT: np.int64}
EXTENTS = [1, 2, 3, 5, 7, 16, 33, 70]


@contextlib.contextmanager
def tiny_pieces(threads: int, around: int = 16):
    """Everything is large, and is computed in pieces of a few elements."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "EAGER_BYTES", 8)
        patch.setattr(plan, "STREAMED_FROM", 8)
        patch.setattr(plan, "_SCATTERED_FROM", 3 * around)
        patch.setattr(build, "_LEAST_TILE", 300)
        patch.setattr(evaluator, "STREAMED_FROM", 8)
        patch.setattr(sources, "PIECE_BYTES", 72)
        patch.setattr(sources.Source, "piece_bytes", 160)
        patch.setattr(sources, "_COLUMNS", 3)
        patch.setattr(sources, "KEPT_BYTES", 64)
        patch.setattr(sources, "_AROUND", around)
        patch.setattr(reductions, "REDUCED_FROM", 64)
        patch.setattr(reductions, "_PIECE", 200)
        patch.setattr(reductions, "_GROUP", 100)
        patch.setattr(pool, "_TILE", 104)
        patch.setattr(pool, "_SLAB", 120)
        patch.setattr(pool, "_LEAST_SPILLED", 16)
        patch.setattr(pool, "THREADS", threads)
        patch.setattr(parallel.in_order, "__defaults__", (threads,))
        patch.setattr(tensor, "LARGE", 64)
        patch.setattr(tensor, "SLAB", 128)
        yield


@contextlib.contextmanager
def whole():
    """Nothing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "STREAMED_FROM", 1 << 60)
        patch.setattr(evaluator, "STREAMED_FROM", 1 << 60)
        patch.setattr(reductions, "REDUCED_FROM", 1 << 60)
        yield


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
    if math.prod(result) < 4000:
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
    if math.prod(result) > 4000 or len(result) > 6:
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
    if math.prod(result) > 4000 or min(result) < 1:
        return
    inputs = [name, dag.weight(np.int64([*before, *after]))]
    if mode == "constant" and draw(st.booleans()):
        inputs.append(dag.weight(np.asarray(7, DTYPES[dtype])))
    dag.node("Pad", inputs, result, dtype, mode=mode)


def tile(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    counts = [draw(st.sampled_from([1, 1, 2, 3])) for _ in shape]
    result = [n * d for n, d in zip(counts, shape, strict=True)]
    if math.prod(result) < 4000:
        dag.node("Tile", [name, dag.weight(np.int64(counts))], result, dtype)


def compress(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    axis = draw(st.integers(0, len(shape) - 1))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    condition = rng.random(shape[axis]) < 0.6
    condition[0] = True
    result = [int(condition.sum()) if k == axis else d for k, d in enumerate(shape)]
    dag.node("Compress", [name, dag.weight(condition)], result, dtype, axis=axis)


def binary(draw, dag: Dag, name: str, shape: tuple[int, ...], dtype: int) -> None:
    fitting = [v for v in dag.values if v[2] == dtype and fits(v[1], shape)]
    other, other_shape, _ = draw(st.sampled_from(fitting))
    result = np.broadcast_shapes(shape, other_shape)
    if math.prod(result) > 4000:
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
