"""The rule of rules/packed_attention.py."""

import numpy as np
import onnx
import pytest
from certify import certify as certify_rule
from certify import graph as plain_graph
from certify import ints, random
from certify import refuse as refuse_rule
from onnxfold.rules import packed_attention as rules

import onnxfold

SIZES = {"sizes": {"B": (1, 2), "S": (1, 5)}}
NODE = "y = com.microsoft.MultiHeadAttention<num_heads=2, scale=0.3>({})"
WEIGHTS = {f"w{k}": random(6, 8, seed=n) for n, k in enumerate("qkv")}
BIASES = {f"b{k}": random(8, seed=n) for n, k in enumerate("qkv")}
ALL = {**WEIGHTS, **BIASES, **ints(rows=[-1, 6], r=[2, -1, 8])}
PRODUCTS = [f"{n}0 = MatMul(x, w{n})\n{n} = Add({n}0, b{n})" for n in "qkv"]
OF_ROWS = ["f = Reshape(x, rows)"]
OF_ROWS += [f"{n}0 = Gemm(f, w{n}, b{n})\n{n} = Reshape({n}0, r)" for n in "qkv"]


def graph(*arguments, **options):
    # certify puts no branches into models of that opset: two would share the weights
    options = {"opset": 10, **ALL, **options}
    made = plain_graph(*arguments, domains={"com.microsoft": 1}, **options)
    for output in made.model.graph.output:
        if not output.type.WhichOneof("value"):  # onnx infers nothing for this domain
            output.type.tensor_type.elem_type = 1
            for _ in range(3):
                output.type.tensor_type.shape.dim.add()
    return made


def certify(rule, *instances):
    certify_rule(
        rule,
        *instances,
        target="onnxruntime",
        tolerance=1e-5,
        times=1,
        gone="MultiHeadAttention",
    )


def refuse(*instances):
    refuse_rule(rules.packed_attention[0], *instances, target="onnxruntime")


@pytest.mark.parametrize("mask", ["", "B,2,S,S", "1,1,S,S"])
def test_products(mask):
    operands = "float[B,S,6] x" + (f", float[{mask}] m" if mask else "")
    node = NODE.format("q, k, v,,,m" if mask else "q, k, v")
    of_all, of_rows, without = rules.packed_attention
    bare = [f"{n} = MatMul(x, w{n})" for n in "qkv"]
    certify(without, graph(operands, *bare, node, **SIZES))
    certify(of_all, graph(operands, *PRODUCTS, node, **SIZES))
    certify(of_rows, graph(operands.replace("B", "2"), *OF_ROWS, node, **SIZES))


def test_what_is_not_packed():
    node = NODE.format("q, k, v")
    refuse(
        graph("float[B,S,6] x, float[B,S,6] z", *PRODUCTS[:2], PRODUCTS[2].replace("x", "z"), node),
        graph("float[B,S,6] x, float[6,8] wv", *PRODUCTS, node),
        graph("float[B,S,6] x", *PRODUCTS, node, bq=random(1)),
        graph("float[B,S,6] x", *PRODUCTS, node, bv=random(5, 8)),
        graph("float[B,S,6] x", *PRODUCTS, node, outputs="y, q"),
        # what another node reads would be stored twice
        graph("float[B,S,6] x", *PRODUCTS, node, "z = MatMul(x, wv)", outputs="y, z"),
        graph("float[B,S,6] x", *PRODUCTS[:2], "v = Add(k0, bv)", node),
    )


def test_nothing_grows(tmp_path):
    """The packed weight is stored in the place of the three."""
    model = graph("float[B,S,6] x", *PRODUCTS, NODE.format("q, k, v")).model
    onnx.save(model, tmp_path / "a.onnx")
    report = onnxfold.optimize_file(
        tmp_path / "a.onnx", tmp_path / "b.onnx", level=2, target="onnxruntime"
    )
    assert report.bytes_after < report.bytes_before
    packed = onnx.load(tmp_path / "b.onnx")
    assert [node.op_type for node in packed.graph.node] == ["Attention"]
    weight = next(t for t in packed.graph.initializer if len(t.dims) == 2)
    want = np.concatenate([WEIGHTS["wq"], WEIGHTS["wk"], WEIGHTS["wv"]], axis=1)
    assert np.array_equal(onnx.numpy_helper.to_array(weight), want)
