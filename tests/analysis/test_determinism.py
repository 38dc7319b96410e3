"""Test which nodes are deterministic, and the reasons reported for the other nodes."""

import re

import onnx_ir as ir
import pytest
from model_table import parse

from onnxfold.analysis.facts import ModelFacts

HALF = "r = Constant <value_float = 0.5> ()"
NONE = "r = Constant <value_float = 0.0> ()"
TRAIN, INFER = (f"t = Constant <value = bool {{{k}}}> ()" for k in (1, 0))
AGAIN = "returns a different result in each run"
RANDOM_BRANCH = "t () => (float[2] p) { p = RandomNormal <shape = [2]> () }"
SURE_BRANCH = "e () => (float[2] q) { q = Abs (c) }"


def if_(then: str) -> str:
    return f"If (yes) <then_branch = {then}, else_branch = {SURE_BRANCH}>"


def loop(text: str) -> str:
    inputs = "int64 i, bool k, float[2] s"
    return (
        f"Loop (n, yes, c) <body = b ({inputs}) => (bool k2, float[2] s2) "
        f"{{ k2 = Identity (k) {text} }}>"
    )


def function(name: str, body: str) -> str:
    return f'<domain: "local", opset_import: ["" : 21, "local" : 1]> {name} (a) => (z) {{ {body} }}'


REASONS: dict[tuple[str, str, int], str | None] = {
    ("RandomNormal <shape = [2]> ()", "", 21): f"RandomNormal {AGAIN}",
    ("RandomUniform <shape = [2]> ()", "", 21): f"RandomUniform {AGAIN}",
    ("RandomNormal <shape = [2], seed = 1.0> ()", "", 21): f"RandomNormal {AGAIN}",
    ("RandomNormalLike (c)", "", 21): f"RandomNormalLike {AGAIN}",
    ("RandomUniformLike (c)", "", 21): f"RandomUniformLike {AGAIN}",
    ("Bernoulli (c)", "", 21): f"Bernoulli {AGAIN}",
    ("Multinomial (m)", "", 21): f"Multinomial {AGAIN}",
    **{
        (body, "", opset): None
        for opset in (17, 21)
        for body in (
            "Add (c, c)",
            "MatMul (m, m)",
            "CastLike (c, m)",
            "SoftmaxCrossEntropyLoss (m, labels)",
            if_("t () => (float[2] p) { p = Neg (c) }"),
        )
    },
    # Dropout
    ("Dropout (c)", "", 21): None,
    (f"Dropout (c, r) {HALF}", "", 21): None,
    (f"Dropout (c, r, t) {HALF} {INFER}", "", 21): None,
    (f"Dropout (c, r, t) {NONE} {TRAIN}", "", 21): None,
    (f"Dropout (c, r, t) {HALF} {TRAIN}", "", 21): "Dropout in training mode is random",
    (f"Dropout (c, r, yes) {HALF}", "", 21): "Dropout in training mode is random",
    (f"Dropout (c, , t) {TRAIN}", "", 21): "Dropout in training mode is random",
    ("Dropout <is_test = 1> (c)", "", 6): None,
    ("Dropout <is_test = 0> (c)", "", 6): "Dropout in training mode is random",
    ("Dropout (c)", "", 6): "Dropout in training mode is random",
    ("Dropout (c)", "", 7): None,
    # nodes with subgraphs and calls of functions, with and without random ops
    (if_(RANDOM_BRANCH), "", 21): "contains RandomNormal",
    (if_(f"o () => (float[2] a) {{ a = {if_(RANDOM_BRANCH)} }}"), "", 21): "contains RandomNormal",
    (loop("r = RandomUniformLike (s) s2 = Add (s, r)"), "", 21): "contains RandomUniformLike",
    (loop("s2 = Add (s, c)"), "", 21): None,
    (
        "local.noise (c)",
        function("noise", "r = RandomNormalLike (a) z = Add (a, r)"),
        21,
    ): "contains RandomNormalLike",
    (
        "local.outer (c)",
        function("noise", "z = RandomNormalLike (a)")
        + function("outer", "b = Neg (a) z = local.noise (b)"),
        21,
    ): "contains RandomNormalLike",
    ("local.twice (c)", function("twice", "z = Add (a, a)"), 21): None,
    ("local.endless (c)", function("endless", "z = local.endless (a)"), 21): "calls itself",
    # ops that ONNX does not define at the opset, and a function with the name of an ONNX op
    ("local.Add (c, c)", "", 21): "local::Add is not an op that ONNX defines at this opset",
    ("com.microsoft.Add (c, c)", "", 21): "com.microsoft::Add",
    ("Gelu (c)", "", 19): "Gelu is not an op that ONNX defines at this opset",
    ("Gelu (c)", "", 20): None,
    (
        "local.Add (c)",
        function("Add", "r = RandomNormalLike (a) z = Neg (r)"),
        21,
    ): "contains RandomNormalLike",
}


@pytest.mark.parametrize(("body", "functions", "opset"), REASONS)
def test_reason_not_to_fold(body, functions, opset):
    call, *constants = re.split(r" (?=[rt] = Constant)", body)
    text = f"""g (float[2] c, float[2, 2] m, bool yes, int64 n, int64[2] labels) => (float[2] y)
        {{ {" ".join(constants)} y = {call} }} {functions}"""
    model = ir.from_proto(parse(text, opset))
    node = list(model.graph)[-1]
    reason = ModelFacts(model).determinism.reason_not_to_fold(node, model.opset_imports)
    expected = REASONS[body, functions, opset]
    assert reason is None if expected is None else reason is not None and expected in reason
