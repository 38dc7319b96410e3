"""Compare inferred sizes in sequences, and of results of Loop and Einsum, with onnxruntime."""

import numpy as np
import onnx.parser
import pytest
from fact_check import FactCheck
from symbolic_check import floats, parse

import onnxfold
from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage
from onnxfold.ir.symbolic.fact import Texts

CONSTANTS = """
    zero = Constant<value_int = 0>()  one = Constant<value_int = 1>()
    last = Constant<value_int = -1>()  two = Constant<value_int = 2>()
    parts = Constant<value_ints = [1, 3]>()  begin = Constant<value_ints = [0]>()
"""


def sizes(model: onnx.ModelProto, *names: str) -> list[list[int | str | None]]:
    opened = storage.from_proto(model)
    analysis = ModelFacts(opened).types
    texts = Texts(analysis.algebra, ())
    values = {v.name: v for node in opened.graph for v in node.outputs}
    found = []
    for name in names:
        shape = analysis.of(values[name]).shape
        assert shape is not None, name
        found.append([d if isinstance(d, int) else texts.of(d) for d in shape])
    return found


@pytest.mark.parametrize(
    "nodes",
    [
        "s = SequenceConstruct(x, z)  y = SequenceAt(s, one)",
        "s = SequenceConstruct(x, z)  y = SequenceAt(s, last)",
        "s = SequenceConstruct(x, z)  n = Cast<to=7>(k)  y = SequenceAt(s, n)",
        "s = SequenceConstruct(x, z)  y = ConcatFromSequence<axis=0>(s)",
        "s = SequenceConstruct(x, x)  y = ConcatFromSequence<axis=1,new_axis=1>(s)",
        "e = SequenceEmpty()  s = SequenceInsert(e, x)  y = SequenceAt(s, zero)",
        "a = SequenceConstruct(x)  s = SequenceInsert(a, z, zero)  y = SequenceAt(s, zero)",
        "a = SequenceConstruct(x, z, z)  s = SequenceErase(a, zero)  y = SequenceAt(s, zero)",
        "a = SequenceConstruct(x, z)  s = SequenceErase(a)  y = SequenceAt(s, last)",
        "s = SplitToSequence<axis=1,keepdims=0>(x)  y = SequenceAt(s, one)",
        "s = SplitToSequence<axis=1>(x, two)  y = SequenceAt(s, one)",
        "s = SplitToSequence<axis=1>(x, parts)  y = SequenceAt(s, last)",
        "s = SplitToSequence<axis=1>(x, two)  n = SequenceLength(s)  a = Add(n, one)"
        "  l = Unsqueeze(a, begin)  y = ConstantOfShape(l)",
    ],
)
def test_sequences(nodes):
    model = parse(
        f"g (float[N,4] x, float[M,4] z, float k) => (float[V] y) {{ {CONSTANTS} {nodes} }}"
    )
    check = FactCheck(model)
    for n, m in ((2, 3), (1, 1), (5, 1)):
        feeds = {"x": floats(n, 4), "z": floats(m, 4), "k": np.array(1, np.float32)}
        assert check.check(feeds) > 2


def test_scan_outputs_of_a_loop_have_one_length():
    model = parse(
        """g (float[N] x) => (float[T,N] a) {
            n = Constant<value_int = 4>()  yes = Constant<value_int = 1>()  go = Cast<to=9>(yes)
            kept, a, b = Loop(n, go, x) <body = l (int64 i, bool c, float[N] s) =>
                    (bool d, float[N] t, float[N] u, float[M] v) {
                d = Identity(c)  t = Relu(s)  u = Neg(s)  v = Concat<axis=0>(s, s)
            }>
            e = Relu(a)  f = Relu(b)
        }"""
    )
    opened = storage.from_proto(model)
    analysis = ModelFacts(opened).types
    values = {v.name: v for node in opened.graph for v in node.outputs}
    first, second = (analysis.of(values[name]).shape for name in "ef")
    assert first is not None and second is not None and first[0] == second[0]
    assert sizes(model, "kept", "e", "f") == [["N"], [None, "N"], [None, "2*N"]]
    assert FactCheck(model).check({"x": floats(3)}) > 2


@pytest.mark.parametrize(
    ("equation", "expected"),
    [("bij,bjk->bik", ["B", "S", "T"]), ("bij,bjk", ["S", "T"]), ("bij, bjk -> k", ["T"])],
)
def test_einsum(equation, expected):
    text = f"""g (float[B,S,8] x, float[B,8,T] z) => (float[V] y) {{
        y = Einsum<equation = "{equation}">(x, z) }}"""
    model = parse(text)
    assert sizes(model, "y") == [expected]
    assert FactCheck(model).check({"x": floats(2, 3, 8), "z": floats(2, 8, 5)}) > 2


@pytest.mark.parametrize("equation", ["ij,ij->ji", "a...,b...", "...i,...i->...i", "...i,...i"])
@pytest.mark.parametrize("left", ["2,1", "B,C"])
def test_sizes_of_one_letter_broadcast(equation, left):
    text = f"""g (float[{left}] x, float[1,3] z) => (float y, int64[R] s) {{
        y = Einsum<equation = "{equation}">(x, z)  s = Shape(y) }}"""
    assert FactCheck(parse(text)).check({"x": floats(2, 1), "z": floats(1, 3)}) > 2


@pytest.mark.parametrize("equation", [".ij,jk->ik", "...i...,j->ij", "....i,j->ij"])
def test_an_einsum_on_which_onnx_hangs_is_not_folded(equation):
    text = f"""g (float[3,3] x) => (float[3,3] y) <float[3,3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{
        z = Einsum<equation = "{equation}">(w, w)  y = Add(x, z) }}"""
    optimized = onnxfold.optimize(parse(text))
    assert [node.op_type for node in optimized.graph.node] == ["Einsum", "Add"]
