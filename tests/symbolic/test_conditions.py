"""Test If nodes with a condition that has the same outcome in every run that does not fail.

TorchScript exports ``x.squeeze(axis)`` as an If whose result has no known rank. Scripted recurrent
layers check the rank of their operand.
"""

from collections.abc import Mapping

import numpy as np
import pytest
from reference_session import OLD_ONNXRUNTIME, reference_session
from symbolic_check import Rewritten, floats, parse, rewrite

NUMBERS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}, int64 two = {2}"""
# x has the shape (N, 3, L)
SQUEEZED = """s = Shape<start=2>(x)  is_one = Equal(s, one)
    y = If(is_one) <then_branch = t () => (float[] a) { a = Squeeze(x, last) },
                    else_branch = e () => (float[] b) { b = Identity(x) }>"""
# q has three axes, as recurrent ops require, only if y has two axes
BATCHED = """k = Shape(y)  n = Size(k)  is_flat = Equal(n, two)  is_batched = Not(is_flat)
    z = If(is_batched) <then_branch = t2 () => (float[] c) { c = Unsqueeze(y, zero) },
                        else_branch = e2 () => (float[] d) { d = Identity(y) }>
    q = Unsqueeze(z, zero)"""


def rewritten(nodes: str, given: str = "", results: str = "float[A,B,C,D] o") -> Rewritten:
    inputs = "float[N,3,L] x, float[1,G,3] w, float[1,G,1] r" + given
    return rewrite(f"g ({inputs}) => ({results}) <{NUMBERS}> {{ {nodes} }}")


def feeds(length: int, gates: int = 4, batch: int = 5) -> Mapping[str, np.ndarray]:
    return {"x": floats(batch, 3, length), "w": floats(1, gates, 3), "r": floats(1, gates, 1)}


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_squeeze_before_a_recurrent_layer(op: str, gates: int):
    model = rewritten(f"{SQUEEZED} {BATCHED} o = {op}<hidden_size=1>(q, w, r)")
    assert model.ops == {"Squeeze": 1, "Identity": 1, "Unsqueeze": 1, op: 1}
    model.check(*(feeds(n, gates) for n in (1, 2, 3)))
    for session in map(reference_session, (model.before, model.after)):
        with pytest.raises(Exception, match=r"(?i)squeeze|rank|dimension"):
            session.run(None, dict(feeds(2, gates)))


@pytest.mark.parametrize("node", ["o = Conv(y, v)", "p = Transpose<perm=[1, 0, 2]>(y)  o = Exp(p)"])
def test_squeeze_before_others(node: str):
    """These nodes require an operand of three axes, so they fail if x is squeezed."""
    model = rewritten(f"{SQUEEZED} {node}", ", float[4,3,1] v", "float[A,B,C] o")
    assert model.ops["If"] == model.ops["Equal"] == 0
    model.check(*({**feeds(n), "v": floats(4, 3, 1)} for n in (1, 2, 3)))


def test_within_a_branch():
    """Nodes of a branch decide the conditions in the same branch."""
    model = rewritten(
        f"""o = If(is_wide) <
            then_branch = t3 () => (float[A,B,C,D] o1) {{
                {SQUEEZED} {BATCHED} o1 = LSTM<hidden_size=1>(q, w, r) }},
            else_branch = e3 () => (float[A,B,C,D] o2) {{ o2 = Unsqueeze(x, zero) }}>""",
        ", bool is_wide",
    )
    assert model.ops == {"If": 1, "Squeeze": 1, "Identity": 1, "Unsqueeze": 2, "LSTM": 1}
    for is_wide in (False, True):
        model.check(*({**feeds(n), "is_wide": np.array(is_wide)} for n in (1, 2)))


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(f"{SQUEEZED} o = Relu(y)", id="any rank is accepted"),
        pytest.param(
            f"{SQUEEZED} {BATCHED} p = LSTM<hidden_size=1>(q, w, r)  o = Relu(y)", id="unused"
        ),
        pytest.param(
            f"""{SQUEEZED} {BATCHED} o = If(is_one) <
                then_branch = t3 () => (float[] f) {{ f = LSTM<hidden_size=1>(q, w, r) }},
                else_branch = e3 () => (float[] h) {{ h = Identity(y) }}>""",
            id="in a branch that need not run",
        ),
        pytest.param(
            """s = Shape<start=2>(x)  is_one = Equal(s, one)  is_long = Greater(s, one)
               o = If(is_long) <
                then_branch = t3 () => (float[] f) { f = Identity(x) },
                else_branch = e3 () => (float[] h) {
                    y = If(is_one) <then_branch = t () => (float[] a) { a = Squeeze(x, last) },
                                    else_branch = e () => (float[] b) { b = Identity(x) }>
                    q = Unsqueeze(y, zero)  h = LSTM<hidden_size=1>(q, w, r) }>""",
            id="a condition from outside",
        ),
        pytest.param(
            f"""{SQUEEZED} m = Slice(x, zero, zero, zero)  j = ReduceSum<keepdims=0>(m, last)
                o = Concat<axis=0>(y, j)""",
            id="Concat accepts empty operands",
        ),
    ],
)
def test_conditions_with_two_possible_outcomes_are_kept(nodes: str):
    model = rewritten(nodes, results="float o")
    assert model.ops["If"] >= 1
    model.check(*(feeds(n) for n in (1, 2, 3)))


@pytest.mark.parametrize(
    ("node", "shapes"),
    [
        ("o = Conv(x, w)", [(1, 3, 1), (4, 3)]),
        ("o = Conv(x, w)", [(1, 3, 1), (0, 3)]),
        ("o = Conv(x, w)", [(1, 3, 1), (2, 3, 4, 4)]),
        ("o = Conv(x, w)", [(1, 3, 1), (0, 3, 4, 4)]),
        ("o = Conv<kernel_shape=[1]>(x, w)", [(1, 3, 1), (2, 3, 1, 1)]),
        ("o = Transpose<perm=[1, 0]>(x)", [(1,), (2, 3, 4)]),
        ("o = Transpose<perm=[1, 0]>(x)", [(1,), (0, 3, 4)]),
        ("o = Transpose<perm=[1, 0]>(x)", [(1,), (1,)]),
        *(
            (f"o = {op}<hidden_size=1>(x, w, r)", [(1, gates, 3), shape, (1, gates, 1)])
            for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
            for shape in ((2, 3), (0, 3), (3,), (1, 2, 2, 3), (0, 1, 2, 3))
        ),
    ],
)
@pytest.mark.skipif(OLD_ONNXRUNTIME, reason="onnxruntime 1.23 crashes on some ranks of operands")
def test_onnxruntime_rejects_the_excluded_ranks(node: str, shapes: list[tuple[int, ...]]):
    """onnxruntime checks a rank in the run if the rank is not known when the model is loaded."""
    model = parse(f"g (float[] x, float[] w, float[] r) => (float[] o) {{ {node} }}")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    session = reference_session(model)
    w, x, *r = map(np.zeros, shapes, [np.float32] * 3)
    with pytest.raises(Exception, match=r"(?i)dim|rank|shape"):
        session.run(None, {"x": x, "w": w, "r": r[0] if r else w})


WINDOW = "<float[2,1,3] w = {1,2,3,4,5,6}, int64[1] one = {1}, int64[1] two = {2}, int64[1] n = {3}"


@pytest.mark.parametrize("where", ["unused", "branch"])
def test_a_node_that_may_not_run_gives_no_facts(where):
    convolved = "z = Exp(x)"
    if where == "branch":
        convolved = """z = If(k) <then_branch = t () => (float[B,2,M] p) {
            p = Conv<strides=[2]>(x, w) }, else_branch = e () => (float[B,2,M] p) {
            p = Concat<axis=1>(x, x) }>"""
    unused = "c = Conv<strides=[2]>(x, w)" if where == "unused" else ""
    model = rewrite(
        f"g (float[B,1,L] x, bool k) => (int64[1] y, float[B,P,M] z) {WINDOW}> "
        f"{{ l = Shape<start=2>(x) a = Sub(l, n) {convolved} {unused}"
        "    g = Less(l, n) h = Cast<to=7>(g) i = Mul(h, two)"
        "    j = Sub(a, i)  y = Div(j, two) }"
    )
    assert model.ops["Div"] == 1
    for size in (1, 2, 3) if where == "branch" else (3,):
        model.check({"x": floats(2, 1, size), "k": np.array(False)})


ROWS = "<int64[1] less = {-1}, int64[1] four = {4}>"
JOINED = "l = Shape<start=2, end=3>(x)  t = Concat<axis=0>(less, l, four)  r = Reshape(x, t)"


@pytest.mark.parametrize("added", ["float[1]", "float[Q,1]", "float[2,1]"])
def test_a_sequence_may_be_empty(added):
    model = rewrite(
        f"g (float[B,2,L,4] x, {added} m) => (float[P,Q,4] z, int64[1] y) {ROWS}"
        f"{{ {JOINED}  z = Add(r, m)  k = Shape<start=1, end=2>(r)  y = Sub(k, l) }}"
    )
    assert model.ops["Sub"] == 1
    shape = (1,) if added == "float[1]" else (2, 1)
    model.check(*({"x": floats(2, 2, n, 4), "m": floats(*shape)} for n in (0, 2)))
