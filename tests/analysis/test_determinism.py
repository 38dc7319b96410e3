"""Which nodes give the same result every time, and what is said about those that do not."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from onnxfold.analysis.determinism import Determinism
from onnxfold.graphs import all_graphs, is_constant_node

RANDOM = {
    "RandomNormal": "RandomNormal <shape = [2]> ()",
    "RandomUniform": "RandomUniform <shape = [2]> ()",
    "RandomNormal with a seed": "RandomNormal <shape = [2], seed = 1.0> ()",
    "RandomNormalLike": "RandomNormalLike (c)",
    "RandomUniformLike": "RandomUniformLike (c)",
    "Bernoulli": "Bernoulli (c)",
    "Multinomial": "Multinomial (m)",
}
SURE = {
    "Add": "Add (c, c)",
    "MatMul": "MatMul (m, m)",
    "If": "If (yes) <then_branch = t () => (float[2] p) { p = Neg (c) },"
    " else_branch = e () => (float[2] q) { q = Abs (c) }>",
    "CastLike": "CastLike (c, m)",
    "SoftmaxCrossEntropyLoss": "SoftmaxCrossEntropyLoss (m, labels)",
}


def load(body: str, functions: str = "", opset: int = 21, domain: str = "local") -> ir.Model:
    text = f"""
    <ir_version: 10, opset_import: ["" : {opset}, "{domain}" : 1]>
    g (float[2] c, float[2, 2] m, bool yes, int64 n, int64[2] labels) => (float[2] y) {{ {body} }}
    {functions}
    """
    return ir.from_proto(onnx.parser.parse_model(text))


def objection(body: str, functions: str = "", opset: int = 21, domain: str = "local") -> str | None:
    """What is said about the last node of the body."""
    model = load(body, functions, opset, domain)
    for graph in all_graphs(model):
        for node in graph:
            if is_constant_node(node):
                output = node.outputs[0]
                output.const_value = ir.convenience.get_const_tensor(output)
    node = list(model.graph)[-1]
    return Determinism(model).objection(node, model.opset_imports)


@pytest.mark.parametrize("name", RANDOM)
def test_random_ops(name):
    op_type = RANDOM[name].split()[0]
    assert objection(f"y = {RANDOM[name]}") == f"{op_type} gives another result each time"


@pytest.mark.parametrize("name", SURE)
@pytest.mark.parametrize("opset", [17, 21])
def test_sure_ops(name, opset):
    assert objection(f"y = {SURE[name]}", opset=opset) is None


# ---------------------------------------------------------------- Dropout


@pytest.mark.parametrize(
    "body",
    [
        "y = Dropout (c)",
        "r = Constant <value_float = 0.5> () y = Dropout (c, r)",
        "r = Constant <value_float = 0.5> () t = Constant <value = bool {0}> ()"
        " y = Dropout (c, r, t)",
        "r = Constant <value_float = 0.0> () t = Constant <value = bool {1}> ()"
        " y = Dropout (c, r, t)",
    ],
    ids=["no ratio", "no mode", "inference", "ratio 0"],
)
def test_dropout_that_copies(body):
    assert objection(body) is None


@pytest.mark.parametrize(
    "body",
    [
        "r = Constant <value_float = 0.5> () t = Constant <value = bool {1}> ()"
        " y = Dropout (c, r, t)",
        "r = Constant <value_float = 0.5> () y = Dropout (c, r, yes)",
        "t = Constant <value = bool {1}> () y = Dropout (c, , t)",
    ],
    ids=["training", "mode unknown", "training, ratio left out"],
)
def test_dropout_that_may_drop(body):
    assert objection(body) == "Dropout in training mode is random"


def test_dropout_of_old_says_by_attribute():
    assert objection("y = Dropout <is_test = 1> (c)", opset=6) is None
    assert objection("y = Dropout <is_test = 0> (c)", opset=6) is not None
    assert objection("y = Dropout (c)", opset=7) is None


def test_dropout_of_old_trains_unless_told_otherwise():
    assert objection("y = Dropout (c)", opset=6) is not None


# ---------------------------------------------------------------- what holds a random op

INNER = "float[2] p) { p = RandomNormal <shape = [2]> () }"


def test_an_if_with_a_random_branch():
    body = f"""y = If (yes) <then_branch = t () => ({INNER},
        else_branch = e () => (float[2] q) {{ q = Abs (c) }}>"""
    assert objection(body).startswith("holds RandomNormal")


def test_a_loop_with_a_random_body():
    body = """y = Loop (n, yes, c) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2)
        { k2 = Identity (k) r = RandomUniformLike (s) s2 = Add (s, r) }>"""
    assert objection(body).startswith("holds RandomUniformLike")


def test_a_loop_with_a_sure_body():
    body = """y = Loop (n, yes, c) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2)
        { k2 = Identity (k) s2 = Add (s, c) }>"""
    assert objection(body) is None


def test_a_random_op_two_graphs_down():
    body = f"""y = If (yes) <then_branch = t () => (float[2] a) {{
            a = If (yes) <then_branch = tt () => ({INNER},
                else_branch = te () => (float[2] q) {{ q = Abs (c) }}> }},
        else_branch = e () => (float[2] b) {{ b = Abs (c) }}>"""
    assert "RandomNormal" in objection(body)


def function(name: str, body: str) -> str:
    return f'<domain: "local", opset_import: ["" : 21, "local" : 1]> {name} (a) => (z) {{ {body} }}'


def test_a_function_with_a_random_op():
    noise = function("noise", "r = RandomNormalLike (a) z = Add (a, r)")
    assert objection("y = local.noise (c)", noise).startswith("holds RandomNormalLike")


def test_a_function_that_calls_a_random_one():
    inner = function("noise", "z = RandomNormalLike (a)")
    outer = function("outer", "b = Neg (a) z = local.noise (b)")
    assert "RandomNormalLike" in objection("y = local.outer (c)", inner + outer)


def test_a_sure_function():
    assert objection("y = local.twice (c)", function("twice", "z = Add (a, a)")) is None


def test_a_function_that_calls_itself():
    endless = function("endless", "z = local.endless (a)")
    assert "calls itself" in objection("y = local.endless (c)", endless)


# ---------------------------------------------------------------- what ONNX does not define


def test_another_domain_with_a_name_of_onnx():
    assert objection("y = local.Add (c, c)") == (
        "local::Add is not an op that ONNX defines at this opset"
    )


def test_a_domain_that_the_model_does_not_import():
    model = load("y = Add (c, c)")
    node = next(iter(model.graph))
    node.domain = "com.microsoft"
    assert "com.microsoft::Add" in Determinism(model).objection(node, {"": 21})


def test_an_op_newer_than_the_opset():
    assert objection("y = Gelu (c)", opset=19) == (
        "Gelu is not an op that ONNX defines at this opset"
    )
    assert objection("y = Gelu (c)", opset=20) is None


def test_a_function_named_like_an_op_of_onnx_decides_by_its_body():
    body = function("Add", "r = RandomNormalLike (a) z = Neg (r)")
    assert objection("y = local.Add (c)", body).startswith("holds RandomNormalLike")
