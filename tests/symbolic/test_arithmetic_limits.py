"""Test integer sums and products that overflow, or that onnxruntime does not compute exactly."""

import numpy as np
import pytest
from model_table import parse, with_weights
from reference_session import reference_session

from onnxfold import optimize


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd"])
@pytest.mark.parametrize("factors", [(2**62 - 1, -1), (2**53 + 1, 5), (2**40, 2**40), (7, -3)])
@pytest.mark.parametrize("level", [0, 1])
def test_reductions_agree_with_onnxruntime(op, factors, level):
    text = f"""g (float[2, 3] x) => (int64 y)
        {{ s = Shape (x) p = Mul (s, c) y = {op} <keepdims = 0> (p) }}"""
    model = with_weights(parse(text, 18), c=factors)
    feeds = {"x": np.zeros((2, 3), np.float32)}
    optimized = optimize(model, level=level)
    (want,), (got,) = (reference_session(m).run(None, feeds) for m in (model, optimized))
    assert want == got


WRAPPING = (
    "a = Mul (x, two) y = Div (a, two)",
    "a = Add (x, one) g = Greater (a, x) y = Cast <to = KIND> (g)",
    "a = Add (x, one) m = Max (a, x) y = Sub (m, x)",
    "m = Max (x, one) a = Add (m, m) g = Greater (a, one) y = Cast <to = KIND> (g)",
    "n = Neg (x) m = Max (n, x) y = Sub (m, x)",
    "a = Cast <to = OTHER> (x) b = Cast <to = KIND> (a) y = Sub (b, x)",
    "a = Cast <to = OTHER> (x) b = Add (a, a) c = Cast <to = KIND> (b) y = Sub (c, x)",
    "s = ReduceSum <keepdims = 1> (x) y = Sub (s, x)",
    "a = Sub (one, one) y = Mul (x, a)",
    "a = Sub (x, x) b = Mul (a, two) y = Add (b, one)",
)


@pytest.mark.parametrize("nodes", WRAPPING)
@pytest.mark.parametrize(("kind", "bits"), [("int32", 32), ("int64", 64)])
def test_sums_of_arbitrary_integers_wrap(nodes, kind, bits):
    to, other = (6, 7) if kind == "int32" else (7, 6)
    nodes = nodes.replace("KIND", str(to)).replace("OTHER", str(other))
    text = f"""g ({kind}[2] x) => ({kind}[2] y)
        <{kind} one = {{1}}, {kind} two = {{2}}> {{ {nodes} }}"""
    model = parse(text, 17)
    sessions = [reference_session(m) for m in (model, optimize(model))]
    top = 1 << (bits - 1)
    for number in (5, -1, 1 << 30, top // 2, -top // 2 - 3, top - 1, 1 - top, top // 2 + 7):
        feeds = {"x": np.array([number, number - 1], kind)}
        (want,), (got,) = (session.run(None, feeds) for session in sessions)
        np.testing.assert_array_equal(want, got, str(number))
