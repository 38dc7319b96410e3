"""Test that many small results together do not exceed the allowed growth of a model."""

import itertools

import numpy as np
import onnx
import pytest
from fold_check import assert_same, count_ops, large, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import onnxfold
from onnxfold.ir import storage


class Pieces:
    """Builds a model of constants and nodes that read them. `output` adds a model output."""

    def __init__(self, prefix: str, node_name: str) -> None:
        self._prefix = prefix
        self._node_name = node_name
        self._count = itertools.count()
        self.graph = helper.make_graph([], "g", [], [])

    def name(self) -> str:
        return f"{self._prefix}{next(self._count)}"

    def constant(self, array: np.ndarray, way: str) -> str:
        name = self.name()
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        if way == "typed" and array.dtype != object:
            tensor = helper.make_tensor(name, dtype, array.shape, array.ravel().tolist())
        else:
            tensor = numpy_helper.from_array(array, name)
        if way == "numbers" and array.ndim == 1 and array.dtype == np.int64:
            self.node("Constant", [], name, value_ints=array.tolist())
        elif way in ("numbers", "node"):
            self.node("Constant", [], name, value=tensor)
        else:
            self.graph.initializer.append(tensor)
        return name

    def node(self, op: str, inputs: list[str], *outputs: str, **attributes: object) -> None:
        name = self._node_name and f"{self._node_name}{self.name()}"
        self.graph.node.append(helper.make_node(op, inputs, outputs, name, **attributes))

    def output(self, name: str, dtype: int, rank: int = 1) -> None:
        self.graph.output.append(helper.make_tensor_value_info(name, dtype, [None] * rank))

    def model(self) -> onnx.ModelProto:
        opset = [helper.make_opsetid("", 21)]
        return helper.make_model(self.graph, opset_imports=opset, ir_version=10)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


FLOAT = onnx.TensorProto.FLOAT
INT = onnx.TensorProto.INT64
STRING = onnx.TensorProto.STRING

# For each op type: a function that creates the operands from a size and a seed, the attributes, and
# the dtypes of the results.
OPS = {
    "Tile": (lambda n, s: [large(1, seed=s), ints(n)], {}, [FLOAT]),
    "Expand": (lambda n, s: [large(1, seed=s), ints(n, 2)], {}, [FLOAT]),
    "Concat": (lambda n, s: [large(n, seed=s), large(1)], {"axis": 0}, [FLOAT]),
    "Cast": (lambda n, s: [np.arange(n, dtype=np.int8)], {"to": INT}, [INT]),
    "ConstantOfShape": (lambda n, s: [ints(n)], {}, [FLOAT]),
    "Range": (lambda n, s: [np.array(k, np.int64) for k in (0, n, 1)], {}, [INT]),
    "StringConcat": (lambda n, s: [np.array([n * "x", f"{s}"], object)] * 2, {}, [STRING]),
    "Split": (lambda n, s: [large(2 * n, seed=s), ints(n, n)], {"axis": 0}, [FLOAT, FLOAT]),
    "TopK": (lambda n, s: [large(n + 1, seed=s), ints(n)], {}, [FLOAT, INT]),
    "Pad": (lambda n, s: [large(n, seed=s), ints(1, n)], {}, [FLOAT]),
    "Neg": (lambda n, s: [large(n, seed=s)], {}, [FLOAT]),
}


@st.composite
def many_small(draw) -> onnx.ModelProto:
    prefix = draw(st.sampled_from(["", "a name of some length/"]))
    pieces = Pieces(prefix, draw(st.sampled_from(["", "/model/layers.1/"])))
    ways = st.sampled_from(["raw", "typed", "node", "numbers"])
    for _ in range(draw(st.integers(1, 3))):
        op = draw(st.sampled_from(sorted(OPS)))
        size = draw(st.sampled_from([1, 4, 16, 60]))
        count = draw(st.sampled_from([1, 5, 30]))
        shared = draw(st.booleans())
        read = draw(st.booleans())
        operands, attributes, dtypes = OPS[op]
        way = draw(ways)
        names: list[str] = []
        for k in range(count):
            if not (shared and names):
                names = [pieces.constant(array, way) for array in operands(size, k)]
            results = [pieces.name() for _ in dtypes]
            pieces.node(op, names, *results, **attributes)
            for result, dtype in zip(results, dtypes, strict=True):
                pieces.output(result, dtype, 1 + (op == "Expand"))
                if read:
                    again = pieces.name()
                    pieces.node("Identity", [result], again)
                    pieces.output(again, dtype, 1 + (op == "Expand"))
    return pieces.model()


GROWTH = st.sampled_from([None, 0, 300, 4096])


def max_size(size: int, growth: int | None) -> int:
    return size + (max(1 << 16, size // 100) if growth is None else growth)


@settings(max_examples=80, deadline=None)
@given(many_small(), st.sampled_from([0, 1]), GROWTH)
def test_no_model_exceeds_the_allowed_growth(model, level, growth):
    onnx.checker.check_model(model)
    result = onnxfold.optimize(model, level=level, max_growth=growth)
    assert result.ByteSize() <= max_size(model.ByteSize(), growth)


@settings(max_examples=15, deadline=None)
@given(model=many_small(), external=st.booleans(), growth=GROWTH)
def test_no_file_exceeds_the_allowed_growth(model, external, growth, tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    onnx.save(model, folder / "m.onnx", save_as_external_data=external, size_threshold=0)
    source = folder / "m.onnx"
    target = folder / "out.onnx"
    report = onnxfold.optimize_file(source, target, fsync=False, max_growth=growth)
    written = sum(file.stat().st_size for file in folder.glob("out.onnx*"))
    assert written == report.bytes_after <= max_size(report.bytes_before, growth)


def tiles(count: int, names: str) -> Pieces:
    pieces = Pieces("", names)
    for k in range(count):
        result = pieces.name()
        operands = [pieces.constant(a, "raw") for a in (large(1, seed=k), ints(16))]
        pieces.node("Tile", operands, result)
        pieces.output(result, FLOAT)
    return pieces


def test_only_the_most_expensive_nodes_are_kept():
    model = tiles(2000, "").model()  # results of 64 bytes from operands of 12 bytes
    result = onnxfold.optimize(model)
    assert result.ByteSize() <= model.ByteSize() + (1 << 16)
    assert len(result.graph.node) < 500
    assert_same(model, result, {})


@pytest.mark.parametrize("doublings", [3, 12])
def test_strings_count_with_their_bytes(doublings):
    pieces = Pieces("s", "")
    last = pieces.constant(np.array(["ab"], object), "raw")
    for _ in range(doublings):
        before, last = last, pieces.name()
        pieces.node("StringConcat", [before, before], last)
    pieces.output(last, STRING)
    model = pieces.model()
    result = onnxfold.optimize(model, max_growth=0)
    assert result.ByteSize() <= model.ByteSize()
    assert bool(result.graph.node) == (doublings > 3)
    assert_same(model, result, {})


@pytest.mark.parametrize("options", [{}, {"target": "onnxruntime"}], ids=["default", "target"])
def test_rules_are_not_applied_if_the_model_would_grow_too_much(options, tmp_path):
    """A rule replaces two Slices with shared constants by one Slice with new constants."""
    numbers = "int64[1] o = {0}, int64[1] i = {1}, int64[1] j = {3}"
    slices = "r = Slice (x, i, j, o) y = Slice (r, i, j, i)"
    model = parse(f"g (float[4, 4] x) => (float[2, 2] y) <{numbers}> {{ {slices} }}")
    assert [node.op_type for node in onnxfold.optimize(model).graph.node] == ["Slice"]
    options = {"max_growth": 0, **options}
    kept = onnxfold.optimize(model, **options)
    assert [node.op_type for node in kept.graph.node] == ["Slice", "Slice"]
    onnx.save(model, tmp_path / "m.onnx")
    report = onnxfold.optimize_file(tmp_path / "m.onnx", tmp_path / "out.onnx", **options)
    assert report.nodes_after == report.nodes_before
    assert report.bytes_after <= report.bytes_before
    assert any("level 0 was applied" in warning for warning in report.warnings)


def test_rules_are_applied_if_only_their_metadata_exceeds_the_limit():
    adds = "".join(f"e{k} = Expand (w{k}, s) x{k + 1} = Add (x{k}, e{k})" for k in range(1800))
    held = "".join(f"float[1, 1] w{k} = {{{k}}}, " for k in range(1800)) + "int64[2] s = {65, 64}"
    model = parse(f"g (float[65, 64] x0) => (float[65, 64] x1800) <{held}> {{ {adds} }}")
    assert len(onnxfold.optimize(model).graph.node) == 1800


def test_inlined_branches_with_equal_names():
    """Both Ifs have branches with equal names, so values of the second branch get longer names."""
    nodes = " ".join(f"n{k} = Relu (x) s{k} = Max ({', '.join(20 * [f'n{k}'])})" for k in range(20))
    total = f"Sum ({', '.join(f's{k}' for k in range(20))})"
    branch = f"then_branch = t () => (o) {{ {nodes} o = {total} }}"
    other = "else_branch = e () => (p) { p = Abs (x) }"
    model = parse(
        f"""g (float[2] x) => (float[2] y, float[2] z) {{
            c = Constant <value = bool {{1}}> ()
            y = If (c) <{branch}, {other}>
            z = If (c) <{branch}, {other}>
        }}"""
    )
    result = onnxfold.optimize(model, level=0)
    assert "If" not in count_ops(storage.from_proto(result))
    assert_same(model, result, {"x": large(2)})
    small = onnxfold.optimize(model, level=0, max_growth=0)
    assert small.ByteSize() <= model.ByteSize()
