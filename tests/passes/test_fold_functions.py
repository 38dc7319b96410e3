"""Model-local functions: constants inside them, and calls of them with constants."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fold_check import X, fold, parse, run, with_weights

from onnxfold import storage
from onnxfold.options import Options
from onnxfold.passes.pipeline import run_passes

HEADER = '<domain: "local", opset_import: ["" : 21, "local" : 1]>'


def with_function(body: str, function: str):
    return parse(
        f"g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}> {{ {body} }} {HEADER} {function}"
    )


def function_of(folded, name: str):
    return next(f for f in folded.proto.functions if f.name == name)


def test_constants_inside_become_constant_nodes():
    model = with_function(
        "y = local.scale (x)",
        """scale (a) => (z) {
            two = Constant <value_float = 2.0> ()
            root = Sqrt (two)
            half = Reciprocal (root)
            z = Mul (a, half)
        }""",
    )
    folded = fold(model, X)
    kinds = [node.op_type for node in function_of(folded, "scale").node]
    assert kinds == ["Constant", "Mul"]


def test_a_call_with_constants_is_computed_and_the_function_goes():
    model = with_function(
        "v = local.twice (w) y = Add (x, v)", "twice (a) => (z) { z = Add (a, a) }"
    )
    folded = fold(model, X)
    assert folded.ops == {"Add": 1}
    assert not folded.proto.functions


def test_a_call_is_computed_at_the_opsets_of_the_function():
    model = with_function(
        """a = Constant <value = float[1, 2, 2] {1, 2, 3, 5}> ()
        e = local.shares (a)
        s = ReduceSum <keepdims = 0> (e)
        y = Add (x, s)""",
        "shares (a) => (z) { z = Softmax (a) }",  # over the last axis only since opset 13
    )
    assert fold(model, X).ops == {"Add": 1}


def test_a_call_with_a_variable_stays_with_its_function():
    model = with_function(
        "v = local.twice (w) u = local.twice (x) y = Add (u, v)",
        "twice (a) => (z) { z = Add (a, a) }",
    )
    folded = fold(model, X)
    assert [node.op_type for node in folded.proto.graph.node] == ["twice", "Add"]
    assert [f.name for f in folded.proto.functions] == ["twice"]
    assert list(folded.weights) == ["v"]


def test_attributes_of_the_caller_stay_with_the_reason():
    model = with_function(
        "v = local.fill <value = 3.0> (x) y = Add (x, v)",
        """fill <value> (a) => (z) {
            c = Constant <value_float: float = @value> ()
            n = Neg (c)
            z = Add (a, n)
        }""",
    )
    folded = fold(model, X)
    assert [n.op_type for n in function_of(folded, "fill").node] == ["Constant", "Neg", "Add"]


def test_a_node_with_the_callers_attribute_says_so():
    model = with_function(
        "y = local.soft <axis = 0> (x)",
        """soft <axis> (a) => (z) {
            c = Constant <value_floats = [1.0, 2.0]> ()
            s = Softmax <axis: int = @axis> (c)
            z = Add (a, s)
        }""",
    )
    folded = fold(model, X)
    assert folded.reasons == {"Softmax": "an attribute is given by the function's caller"}
    assert [n.op_type for n in function_of(folded, "soft").node] == ["Constant", "Softmax", "Add"]


def test_a_call_with_attributes_and_constants_is_computed():
    model = with_function(
        "v = local.leak <slope = 0.5> (n) n = Neg (w) y = Add (x, v)",
        "leak <slope> (a) => (z) { z = LeakyRelu <alpha: float = @slope> (a) }",
    )
    nodes = model.graph.node
    nodes.sort(key=lambda n: ["Neg", "leak", "Add"].index(n.op_type))
    assert fold(model, X).ops == {"Add": 1}


def test_a_function_that_calls_another():
    model = parse(
        f"""g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}> {{
            v = local.outer (w)
            u = local.outer (x)
            y = Add (u, v)
        }}
        {HEADER} inner (a) => (z) {{ z = Neg (a) }}
        {HEADER} outer (a) => (z) {{ b = local.inner (a) c = Exp (b) z = Add (c, a) }}"""
    )
    folded = fold(model, X)
    assert {f.name for f in folded.proto.functions} == {"inner", "outer"}
    assert [n.op_type for n in folded.proto.graph.node] == ["outer", "Add"]


def test_a_random_function_stays():
    model = with_function(
        "v = local.noise (w) y = Add (x, v)",
        "noise (a) => (z) { r = RandomNormalLike (a) z = Add (a, r) }",
    )
    folded = fold(model)
    assert "RandomNormalLike" in folded.reasons["noise"]
    assert [n.op_type for n in folded.proto.graph.node] == ["noise", "Add"]


def test_a_known_if_inside_a_function():
    model = with_function(
        "y = local.pick (x)",
        """pick (a) => (z) {
            c = Constant <value = bool {1}> ()
            z = If (c) <
                then_branch = t () => (p)
                    { k = Constant <value_float = 2.0> () m = Neg (k) p = Mul (a, m) },
                else_branch = e () => (q) { q = Abs (a) }
            >
        }""",
    )
    folded = fold(model, X, max_growth=64)
    kinds = [node.op_type for node in function_of(folded, "pick").node]
    assert kinds == ["Constant", "Mul"]


def test_a_function_whose_opset_makes_its_ops_others_than_the_model_has_stays():
    """Softmax flattens to two dimensions before opset 13 and does not since."""
    old = '<domain: "local", opset_import: ["" : 11]>'
    model = parse(
        f"""g (float[2, 2, 2] x) => (float[2, 2, 2] y, float[2, 2, 2] z)
            <float[2, 2, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
            a = local.soft (w)
            y = Add (x, a)
            b = local.plus (w)
            z = Add (x, b)
        }}
        {old} soft (a) => (z) {{ z = Softmax <axis = 1> (a) }}
        {old} plus (a) => (z) {{ z = Shrink (a) }}"""
    )
    opened = storage.from_proto(model)
    stays = run_passes(opened, Options(level=0, max_growth=64)).propagation.stays
    assert [node.op_type for node in opened.graph] == ["soft", "Add", "Add"]
    assert "another op at opset 11 of its function" in next(
        stay.reason for stay in stays if stay.node.op_type == "soft"
    )


@pytest.mark.parametrize("op", ["Elu", "Selu", "Softplus", "HardSigmoid", "LeakyRelu"])
def test_ops_that_are_functions_to_onnxruntime_are_computed_at_the_opset_of_the_model(op):
    """It has no kernel of theirs for double, and a function in its place at opset 18 only."""
    model = parse(f"g () => (double[64] y) {{ y = {op} (w) }}", 18)
    weight = np.random.default_rng(0).standard_normal(64)
    assert not fold(with_weights(model, w=weight), {}).ops


def test_a_model_that_is_newer_than_onnxruntime_is_computed_at_an_older_opset():
    model = parse("g () => (float[64] y) { y = Exp (w) }", 27)
    model.ir_version = onnx.IR_VERSION
    weight = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    folded = fold(with_weights(model, w=weight))
    older = parse("g () => (float[64] y) { y = Exp (w) }", 18)
    [wanted] = run(with_weights(older, w=weight), {})
    assert folded.weights["y"].tobytes() == wanted.tobytes()
