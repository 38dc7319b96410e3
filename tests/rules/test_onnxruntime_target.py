"""The rules of rules/onnxruntime_target.py."""

import math
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from certify import certify as certify_rule
from certify import graph as plain_graph
from certify import random
from certify import refuse as refuse_rule
from onnxfold.rules import onnxruntime_target as rules

import onnxfold
from onnxfold.options import Options
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import RuleSet

NEAR = 1e-5
F = np.float32


def graph(*arguments, **options):
    made = plain_graph(*arguments, domains={"com.microsoft": 1}, **options)
    for output in made.model.graph.output:
        if not output.type.WhichOneof("value"):  # onnx infers nothing for this domain
            output.type.tensor_type.elem_type = 1
            for _ in range(3):
                output.type.tensor_type.shape.dim.add()
    return made


def certify(rule, *instances, **options):
    certify_rule(
        rule, *instances, target="onnxruntime", **{"tolerance": NEAR, "times": 1, **options}
    )


def refuse(rule, *instances):
    refuse_rule(rule, *instances, target="onnxruntime")


ONE = {"x": random(2, 3, 4, seed=5)}
FEEDS = {**ONE, "z": random(2, 3, 4, seed=6)}
ERF = ("s = Div(x, r)", "e = Erf(s)", "p = Add(e, one)", "u = Mul(x, p)", "y = Mul(u, half)")
TANH = (
    "q = Pow(x, three)",
    "v = Mul(c, q)",
    "s = Add(x, v)",
    "i = Mul(k, s)",
    "e = Tanh(i)",
    "p = Add(e, one)",
    "u = Mul(x, p)",
    "y = Mul(u, half)",
)
NUMBERS = {
    "r": F(math.sqrt(2)),
    "one": F(1),
    "half": F(0.5),
    "three": F(3),
    "c": F(0.044715),
    "k": F(math.sqrt(2 / math.pi)),
}


def test_only_for_the_target():
    model = ir.from_proto(graph("float[N,3] x", *ERF, **NUMBERS).model)
    for target, fired in ((None, 0), ("onnxruntime", 1)):
        step = Simplify(
            [RuleSet("one", (rules.erf_gelu,))], options=Options(level=2, target=target)
        )
        step(model)
        assert step.report.total == fired


def test_opset_is_imported():
    model = ir.from_proto(plain_graph("float[N,3] x", *ERF, **NUMBERS).model)
    Simplify([RuleSet("one", (rules.erf_gelu,))], options=Options(level=2, target="onnxruntime"))(
        model
    )
    assert model.opset_imports["com.microsoft"] == 1


def test_between_all_other_passes(tmp_path):
    """onnx infers nothing for this domain: what comes after its ops has types of half unknown."""
    swin = Path(__file__).parents[2] / "models" / "swin.onnx"
    report = onnxfold.optimize_file(
        swin, tmp_path / "out.onnx", level=2, target="onnxruntime", check=1
    )
    assert report.rewrites["erf_gelu"] == 4
    assert report.check.passed


def test_gelu():
    certify(rules.erf_gelu, graph("float[N,3] x", *ERF, **NUMBERS), gone="Erf")
    certify(rules.erf_gelu, graph("float[N,3] x", *ERF, opset=20, **NUMBERS), gone="Erf")
    certify(rules.fast_gelu, graph("float[2,3,4] x", *TANH, feeds=ONE, **NUMBERS), gone="Tanh")
    refuse(
        rules.erf_gelu,
        graph("float[N,3] x", *ERF, **{**NUMBERS, "r": F(2)}),
        graph("double[N,3] x", *ERF, **{k: v.astype(np.float64) for k, v in NUMBERS.items()}),
    )
    refuse(rules.fast_gelu, graph("float[N,3] x", *TANH, **{**NUMBERS, "c": F(0.05)}))


def test_swish():
    nodes = ("t = Mul(x, k)", "s = Sigmoid(t)", "y = Mul(x, s)")
    certify(rules.quick_gelu, graph("float[N,3] x", *nodes, k=F(1.702)))
    certify(rules.quick_gelu_of_swish, graph("float[N,3] x", "s = Sigmoid(x)", "y = Mul(s, x)"))
    refuse(rules.quick_gelu, graph("float[N,3] x", *nodes, k=F([1, 2, 3])))
    refuse(
        rules.quick_gelu_of_swish,
        graph("float[N,3] x, float[N,3] z", "s = Sigmoid(x)", "y = Mul(s, z)"),
        graph("double[N,3] x", "s = Sigmoid(x)", "y = Mul(s, x)"),
    )


WEIGHTS = {"w": random(4, seed=2), "b": random(4, seed=3)}


def test_sum_before_layer_normalization():
    two = "float[2,3,4] x, float[2,3,4] z"
    nodes = ("t = Add(x, z)", "y = LayerNormalization<epsilon=0.001>(t, w, b)")
    both = graph(two, *nodes, "u = Relu(t)", outputs="y, u, t", **WEIGHTS)
    certify(rules.sum_before_layer_normalization, graph(two, *nodes, **WEIGHTS), both, gone="Add")
    refuse(
        rules.sum_before_layer_normalization,
        graph("float[2,3,4] x, float[3,4] z", *nodes, **WEIGHTS),  # nor does onnxruntime match it
        graph(two, nodes[0], "y = Relu(t)"),
    )


def test_onnxruntime_leaves_sums_alone():
    """Its own optimizations make SkipLayerNormalization of an Add, and not of a Sum."""
    made = graph(
        "float[2,3,4] x, float[2,3,4] z",
        "t = Add(x, z)",
        "y = LayerNormalization<epsilon=0.001>(t, w, b)",
        **WEIGHTS,
    ).model
    model = ir.from_proto(made)
    Simplify(
        [RuleSet("one", (rules.sum_before_layer_normalization,))],
        options=Options(level=2, target="onnxruntime"),
    )(model)
    found = [optimized_by_onnxruntime(each) for each in (made, ir.to_proto(model))]
    assert found == [["SkipLayerNormalization"], ["Sum", "LayerNormalization"]]


def optimized_by_onnxruntime(model):
    options = ort.SessionOptions()
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        options.log_severity_level = 4
        ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def test_fused_matmul():
    left, right = rules.fused_matmul_of_transposed
    turn = "t = Transpose<perm=[0,2,1]>"
    certify(
        left,
        graph("float[2,3,N] x", f"{turn}(x)", "y = MatMul(t, w)", w=random(2, 3, 4)),
        tolerance=1e-4,
        gone="Transpose",
    )
    certify(
        right,
        graph("float[2,N,3] x, float[2,5,3] z", f"{turn}(z)", "y = MatMul(x, t)"),
        tolerance=1e-4,
        gone="Transpose",
    )
    refuse(
        right,
        graph(
            "float[2,N,3] x, float[3,5,2] z", "t = Transpose<perm=[2,0,1]>(z)", "y = MatMul(x, t)"
        ),
        graph("float[2,N,3] x, float[5,3] z", "t = Transpose(z)", "y = MatMul(x, t)"),
        graph("float[N,3] x", "t = Transpose(w)", "y = MatMul(x, t)", w=random(4, 3)),
        graph("float[3] x, float[5,3] z", "t = Transpose(z)", "y = MatMul(x, t)"),
    )
    again = rules.fused_matmul_of_transposed_too
    fused = "y = com.microsoft.FusedMatMul<alpha=0.5, transA={}, transB={}>"
    certify(
        again,
        graph("float[2,N,3] x, float[2,5,3] z", f"{turn}(z)", fused.format(0, 0) + "(x, t)"),
        tolerance=1e-4,
        gone="Transpose",
    )
    refuse(
        again,
        graph("float[2,3,N] x, float[5,3] z", f"{turn}(z)", fused.format(1, 0) + "(x, t)"),
        graph("float[2,N,3] x, float[2,3,5] z", f"{turn}(z)", fused.format(0, 1) + "(x, t)"),
    )


def test_fused_matmul_scaled():
    product = "t = MatMul(x, z)"
    two = "float[2,N,3] x, float[2,3,5] z"
    near = {"tolerance": 1e-4}
    certify(rules.fused_matmul_scaled, graph(two, product, "y = Mul(t, c)", c=F(0.3)), **near)
    certify(rules.fused_matmul_divided, graph(two, product, "y = Div(t, c)", c=F(3)), **near)
    refuse(
        rules.fused_matmul_scaled,
        graph(two, product, "y = Mul(t, c)", c=random(5)),
        graph(two, product, "y = Mul(t, c)", c=F([[[[2]]]])),
        graph("float[3] x, float[3,5] z", product, "y = Mul(t, c)", c=F(2)),
    )
    refuse(
        rules.fused_matmul_divided,
        graph(two, product, "y = Div(t, c)", c=F(0)),
        graph(two, product, "y = Div(c, t)", c=F(2)),
    )
    turned = "t = com.microsoft.FusedMatMul<alpha=0.5, transA=0, transB=1>(x, z)"
    for rule, scale, c in zip(
        rules.fused_matmul_scaled_too, ("y = Mul(t, c)", "y = Div(t, c)"), (0.3, 3), strict=True
    ):
        sides = two.replace("3,5", "5,3")
        certify(rule, graph(sides, turned, scale, c=F(c)), times=1, **near)
        refuse(
            rule,
            graph(sides, turned, scale, c=random(5)),
            graph(sides, turned, scale, outputs="y, t", c=F(c)),
        )
    refuse(rules.fused_matmul_scaled_too[1], graph(sides, turned, "y = Div(t, c)", c=F(0)))
    fused = "y = com.microsoft.FusedMatMul<alpha=0.5, transA=0, transB=0>"
    again = rules.fused_matmul_scaled_again
    for k, op in enumerate(("Mul", "Div")):
        orders = ((f"t = {op}(x, c)", "(t, z)"), (f"t = {op}(z, c)", "(x, t)"))
        for position, (scale, operands) in enumerate(orders):
            plain = rules.fused_matmul_of_scaled[2 * k + position]
            certify(plain, graph(two, scale, f"y = MatMul{operands}", c=F(0.3)), **near)
            if op == "Mul":
                certify(again, graph(two, scale, fused + operands, c=F(0.3)), **near)
            for rule, node in ((plain, "y = MatMul"), (again, fused)):
                refuse(
                    rule,
                    graph(two, scale, node + operands, c=random(3, 1)[:1] * random(2, 1, 1)),
                    graph(two, scale, node + operands, "q = Neg(t)", outputs="y, q", c=F(0.3)),
                )


def test_scaled_with_what_is_added():
    operands = "float[2,B,3] x, float[2,3,5] z, float[5] b"
    rule = rules.fused_matmul_scaled_with_bias
    nodes = ("t = MatMul(x, z)", "a = Add(t, b)", "y = Mul(a, c)")
    certify(rule, graph(operands, *nodes, c=F(0.3)), times=1, tolerance=1e-4)
    refuse(
        rule,
        graph(operands, *nodes, c=random(5)),
        graph(operands, *nodes, outputs="y, a", c=F(0.3)),
        graph(operands.replace("float[5]", "float[2,B,5]"), *nodes, c=F(0.3)),
    )


def test_conv_activation():
    weight = {"w": random(3, 2, 3, 3), "b": random(3)}
    conv = "t = Conv<pads=[1,1,0,0], strides=[2,1]>(x, w, b)"
    start = ("float[N,2,5,5] x", conv)
    relu, sigmoid, tanh, leaky, clip = rules.conv_activation
    bounds = {"lo": F(0), "hi": F(6)}
    certify(relu, graph(*start, "y = Relu(t)", **weight))
    certify(sigmoid, graph(*start, "y = Sigmoid(t)", **weight))
    certify(tanh, graph(*start, "y = Tanh(t)", **weight))
    certify(leaky, graph(*start, "y = LeakyRelu<alpha=0.2>(t)", **weight))
    certify(clip, graph(*start, "y = Clip(t, lo, hi)", **bounds, **weight))
    refuse(
        relu,
        graph(*start, "y = Relu(t)", "z = Neg(t)", outputs="y, z", **weight),
        graph(
            "float[N,2,5,5] x",
            't = Conv<auto_pad="SAME_UPPER">(x, w)',
            "y = Relu(t)",
            w=random(3, 2, 3, 3),
        ),
    )
    refuse(sigmoid, graph(*start, "y = Relu(t)", **weight))
    refuse(clip, graph(*start, "y = Clip(t,, hi)", **bounds, **weight))


@pytest.mark.parametrize("position, name", list(enumerate(["Relu", "Sigmoid", "Tanh"])))
def test_gemm_activation(position, name):
    rule = rules.gemm_activation[position]
    node = "t = Gemm<alpha=0.5, beta=2.0, transB=1>(x, w, b)"
    more = {"w": random(4, 3), "b": random(4)}
    certify(rule, graph("float[N,3] x", node, f"y = {name}(t)", **more), tolerance=1e-4)
    refuse(
        rule,
        graph("float[N,3] x", node, f"y = {name}(t)", "z = Neg(t)", outputs="y, z", **more),
        graph("float[N,3] x", node, "y = Neg(t)", **more),
    )
