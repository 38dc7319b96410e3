"""The rules of rules/attention.py: attention as ONNX's own op."""

import numpy as np
import onnx
import pytest
from certify import certify as certify_rule
from certify import graph as plain_graph
from certify import ints, random, refuse
from onnx.reference import ReferenceEvaluator
from onnxfold.rules import attention as rules
from reference_session import reference_session

F = np.float32
LOWEST = np.finfo(F).min
OPERANDS = "float[B,2,S,4] q, float[B,2,4,L] t, float[B,2,L,4] v"
SIZES = {"sizes": {"B": (1, 2), "S": (1, 3), "L": (4, 33)}}
PLAIN, CAPPED = rules.attention
WEIGHTS, RESULT = "p = Softmax<axis=-1>({})", "y = MatMul(p, v)"


def needs(node: str, heads: int) -> None:
    """Skip the test if onnxruntime computes a node otherwise than ONNX defines it."""
    operands = f"float[2,6,3,4] q, float[2,{heads},5,4] k, float[2,{heads},5,4] v, float[2,1,3,5] m"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> g ({operands}) => (float[2,6,3,4] y) {{{node}}}'
    )
    feeds = {"q": random(2, 6, 3, 4), "m": random(2, 1, 3, 5), "k": random(2, heads, 5, 4)}
    feeds["v"] = random(2, heads, 5, 4, seed=1)
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    (got,) = reference_session(model).run(None, feeds)
    if not np.allclose(wanted, got, atol=1e-5):
        pytest.skip(f"this onnxruntime computes {node} otherwise than ONNX defines it")


def graph(*arguments, **options):
    return plain_graph(*arguments, opset=23, **options)


def certify(rule, *instances, **options):
    certify_rule(rule, *instances, tolerance=1e-5, times=1, **options)


@pytest.mark.parametrize(
    ("scores", "last"),
    [
        (("s = MatMul(q, t)",), "s"),
        (("s = MatMul(q, t)", "z = Mul(s, c)"), "z"),
        (("s = MatMul(q, t)", "z = Div(s, c)"), "z"),
    ],
)
def test_scores(scores, last):
    made = graph(OPERANDS, *scores, WEIGHTS.format(last), RESULT, c=F(0.3), **SIZES)
    certify(PLAIN, made, gone="Softmax MatMul")
    refuse(
        PLAIN,
        graph(OPERANDS.replace("float", "double"), *scores[:1], WEIGHTS.format("s"), RESULT),
        graph(OPERANDS.replace("B,2,L,4", "B,1,L,4"), *scores[:1], WEIGHTS.format("s"), RESULT),
        plain_graph(OPERANDS, *scores[:1], WEIGHTS.format("s"), RESULT, opset=22),
    )


@pytest.mark.parametrize("low", [F(-np.inf), LOWEST, F(-1e30)])
@pytest.mark.parametrize("guard", [True, False])
def test_rows_that_are_all_hidden(low, guard):
    shown = np.ones((2, 1, 3, 5), bool)
    shown[0, :, :, :2], shown[1, :, 1:, 3:], shown[1, :, 0] = False, False, False
    feeds = {"q": random(2, 2, 3, 4), "t": random(2, 2, 4, 5), "v": random(2, 2, 5, 4), "m": shown}
    operands = "float[2,2,3,4] q, float[2,2,4,5] t, float[2,2,5,4] v, bool[2,1,3,5] m"
    weights = (WEIGHTS.format("a"),)
    if guard:
        weights = (WEIGHTS.format("a").replace("p", "e", 1), "n = IsNaN(e)", "p = Where(n, o, e)")
    options = {"low": low, "feeds": feeds, **({"o": F(0)} if guard else {})}
    for masked in ("a = Where(m, s, low)", "z = Where(m, none, low)\na = Add(s, z)"):
        more = {"none": F(0)} if "none" in masked else {}
        nodes = ("s = MatMul(q, t)", masked, *weights, RESULT)
        certify(PLAIN, graph(operands, *nodes, **options, **more), gone="Softmax")


def test_capped_scores():
    needs("y = Attention<softcap = 2.0>(q, k, v, m)", heads=6)
    nodes = ("s = MatMul(q, t)", "z = Mul(s, c)", "h = Tanh(z)", "g = Mul(h, cap)")
    masked = ("a = Add(g, m)", WEIGHTS.format("a"), RESULT)
    operands = f"{OPERANDS}, float[B,1,S,L] m"
    constants = {"c": F(0.3), "cap": F(2)}
    certify(CAPPED, graph(operands, *nodes, *masked, **constants, **SIZES), gone="Tanh")
    refuse(CAPPED, graph(operands, *nodes, *masked, c=F(0.3), cap=F(-2)))


def test_scaled_operands():
    of_queries, of_keys = rules.standard_attention_of_scaled
    operands = "float[B,2,S,4] x, float[B,2,L,4] k, float[B,2,L,4] v"
    node = "y = Attention<scale=0.7>({}, v)"
    certify(of_queries, graph(operands, "a = Mul(x, c)", node.format("a, k"), c=F(0.3), **SIZES))
    certify(of_keys, graph(operands, "a = Mul(k, c)", node.format("x, a"), c=F(0.3), **SIZES))
    refuse(of_keys, graph(operands, "a = Mul(k, c)", node.format("x, a"), c=random(4)))


def test_heads_that_several_queries_share():
    needs("y = Attention(q, k, v)", heads=2)
    nodes = [
        f"{a}1 = Unsqueeze({a}, two)\n{a}2 = Expand({a}1, times)\n{a}3 = Reshape({a}2, all)"
        for a in "kv"
    ]
    constants = ints(two=[2], times=[1, 1, 3, 1, 1], all=[0, 6, -1, 4])
    operands = "float[B,6,S,4] q, float[B,2,L,4] k, float[B,2,L,4] v"
    node = "y = Attention<scale=0.7>(q, k3, v3)"
    made = graph(operands, *nodes, node, **constants, **SIZES)
    certify(rules.standard_attention_of_groups, made, gone="Expand")
