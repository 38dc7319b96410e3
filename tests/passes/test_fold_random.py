"""Test that folds in random graphs of constants and inputs do not change any bit."""

import numpy as np
import onnx
import pytest
from fold_check import fold, large, parse, run, with_weights
from model_table import external

import onnxfold
from onnxfold.api.options import Options
from onnxfold.fold.pool import BufferTensor
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs
from onnxfold.passes.constant_propagation import ConstantPropagation

STEPS = [
    *2 * ["{o} = Transpose <perm = [1, 0]> ({a})"],
    *(f"{{o}} = {op} ({{a}}, {{b}})" for op in ("Add", "Mul", "Sub", "MatMul", "Max")),
    *(f"{{o}} = {op} ({{a}})" for op in ("Neg", "Abs", "Sign", "Identity")),
    "{o}c = Less ({a}, {b}) {o} = Where ({o}c, {a}, {b})",
    "{o} = Expand ({a}, square)",
    "{o}a, {o}b = Split <axis = 1> ({a}, halves) {o} = Concat <axis = 1> ({o}b, {o}a)",
    "{o}a = Slice ({a}, last, first, axis, minus) {o} = Add ({o}a, {b})",
    "{o}a = Gather <axis = 1> ({a}, order) {o} = Sub ({o}a, {b})",
    "{o}a = Pad ({a}, pads) {o} = Slice ({o}a, one, most, axis)",
    '{o}a = Pad <mode = "edge"> ({a}, pads) {o}b = Slice ({o}a, one, most, axis)'
    " {o} = Mul ({o}b, {b})",
    "{o}a = Tile ({a}, twice) {o}, {o}b = Split <axis = 0, num_outputs = 2> ({o}a)",
    "{o}a = Reshape ({a}, flat) {o}b = Neg ({o}a) {o} = Reshape ({o}b, square)",
    "{o}a = Reshape ({a}, parts) {o}b = Transpose <perm = [1, 2, 0]> ({o}a)"
    " {o} = Reshape ({o}b, square)",
    *(
        f"{{o}}a = {op} <keepdims = 1> ({{a}}, axis) {{o}} = Sub ({{b}}, {{o}}a)"
        for op in ("ReduceSum", "ReduceMax", "ReduceMin")
    ),
]
"""Templates of nodes that compute the square matrix {o} from the square matrices {a} and {b}."""
FLOATS = [
    *(f"{{o}} = {op} ({{a}})" for op in ("Exp", "Erf", "Softmax", "Relu", "Sqrt", "Floor")),
    *(f"{{o}} = {op} ({{a}})" for op in ("Dropout", "Round", "Tanh")),
    "{o} = Div ({a}, {b})",
    "{o}a = ReduceMean <keepdims = 1> ({a}, axis) {o} = Sub ({b}, {o}a)",
    "{o}a = Cast <to = 11> ({a}) {o}b = Mul ({o}a, {o}a) {o} = Cast <to = 1> ({o}b)",
]
BRANCH = """{o} = If (c) <
    then_branch = t{o} () => (p{o}) {{ q{o} = Neg ({a}) p{o} = Add (q{o}, {b}) }},
    else_branch = e{o} () => (r{o}) {{ r{o} = Abs ({b}) }}>"""


def random_graph(
    seed: int, side: int, kind: str = "float", *, constant: bool = False
) -> onnx.ModelProto:
    """Return a model of 14 random steps on constants, a matrix ``x`` and a condition ``c``.

    With ``constant``, the model has no inputs.
    """
    rng = np.random.default_rng(seed)
    steps = [*STEPS, *FLOATS * (kind == "float"), *[BRANCH] * 3 * (not constant)]
    values = [*["x"] * (not constant), "w0", "w1", "w2", "row"]
    lines = []
    for k in range(14):
        a, b = (values[int(rng.integers(0, len(values)))] for _ in "ab")
        lines.append(steps[int(rng.integers(0, len(steps)))].format(o=f"v{k}", a=a, b=b))
        values.append(f"v{k}")
    inputs = "" if constant else f"{kind}[{side}, {side}] x, bool c"
    outputs = ", ".join(f"{kind}[{side}, {side}] {o}" for o in values[-3:])
    model = parse(f"g ({inputs}) => ({outputs}) {{ {' '.join(lines)} }}")
    dtype = {"float": np.float32, "double": np.float64, "int64": np.int64}[kind]
    weights = {f"w{k}": (3 * large(side, side, seed=seed + k)).astype(dtype) for k in range(3)}
    if kind != "int64":
        weights["w2"][0, :3] = [np.nan, -0.0, np.inf]
    lists = {
        "square": [side, side],
        "halves": [side // 2] * 2,
        "flat": [-1],
        "parts": [2, side // 2, side],
        "order": rng.permutation(side),
        "twice": [2, 1],
        "first": [-side - 1],
        "last": [side],
        "axis": [1],
        "minus": [-1],
        "one": [1],
        "most": [side + 1],
        "pads": [0, 1, 0, 2],
    }
    arrays = {name: np.int64(numbers) for name, numbers in lists.items()}
    return with_weights(model, **weights, row=weights["w0"][:1].repeat(side, 0), **arrays)


@pytest.mark.parametrize("side", [4, 32, 160])
@pytest.mark.parametrize("seed", range(25))
def test_folds_do_not_change_bits(seed, side):
    model = random_graph(seed, side)
    for options in ({}, {"fold_all": True}, {"max_growth": 4096}, {"memory_limit": 1 << 16}):
        feeds = {"x": large(side, side, seed=99), "c": np.array(seed % 2 == 0)}
        folded = fold(model, feeds, **options)
        if not options:
            assert folded.proto.ByteSize() <= model.ByteSize()


@pytest.mark.parametrize("kind", ["float", "double", "int64"])
@pytest.mark.parametrize("seed", range(25))
def test_constant_graphs(seed, kind):
    """The results are large enough to be computed block by block, with several ops at once."""
    model = random_graph(seed, 320, kind, constant=True)
    for options in ({}, {"memory_limit": 1 << 21}):
        assert not fold(model, {}, fold_all=True, **options).ops


@pytest.mark.parametrize("fold_all", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_only_values_that_the_result_reads_become_tensors(seed, fold_all):
    model = storage.from_proto(random_graph(seed, 32))
    propagation = ConstantPropagation(Options(fold_all=fold_all))
    propagation(model)
    graphs = list(all_graphs(model))
    read = {v for graph in graphs for node in graph for v in node.inputs if v is not None}
    read.update(v for graph in graphs for v in graph.outputs)
    tensors = [v.const_value for v in read if isinstance(v.const_value, BufferTensor)]
    assert propagation.outcome.pool.statistics.materialized == len(tensors)


@pytest.mark.parametrize("lead", range(0, 64, 4))
def test_sums_do_not_depend_on_the_offset_of_a_weight_in_its_file(tmp_path, lead):
    """onnxruntime reads the whole weight. Each case stores the weight at another offset."""
    model = parse("g () => (float[1, 1] y) <int64[2] a = {0, 1}> { y = ReduceMean (w, a) }")
    weight = large(33, 37, seed=lead)
    [expected] = run(with_weights(model, w=weight), {})
    (tmp_path / "in.data").write_bytes(b"\0" * lead + weight.tobytes())
    [stored] = (t for t in model.graph.initializer if t.name == "w")
    place = {"location": "in.data", "offset": str(lead), "length": str(weight.nbytes)}
    stored.CopyFrom(external("w", [33, 37], **place))
    onnx.save(model, tmp_path / "in.onnx")
    result = onnxfold.optimize(tmp_path / "in.onnx", fold_all=True)
    assert result.graph.initializers["y"].const_value.numpy().tobytes() == expected.tobytes()
