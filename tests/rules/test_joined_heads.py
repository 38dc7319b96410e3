"""The rules of rules/joined_heads.py."""

import pytest
from certify import certify as certify_rule
from certify import graph as plain_graph
from certify import ints
from certify import refuse as refuse_rule
from onnxfold.rules import joined_heads as rules

SIZES = {"sizes": {"B": (1, 2), "M": (1, 3), "N": (4, 5)}}
FORMS = (
    ("float[B,2,4,N] z", "MatMul(a, b)"),
    ("float[B,2,4,N] z", "com.microsoft.FusedMatMul<alpha=0.3, transA=0, transB=0>(a, b)"),
    ("float[B,2,N,4] z", "com.microsoft.FusedMatMul<alpha=0.3, transA=0, transB=1>(a, b)"),
)
NUMBERS = ints(l=[-1], four=[4], two=[2])


def graph(*arguments, rank=4, **options):
    made = plain_graph(*arguments, domains={"com.microsoft": 1}, **options)
    for output in made.model.graph.output:
        if not output.type.WhichOneof("value"):  # onnx infers nothing for this domain
            output.type.tensor_type.elem_type = 1
            for _ in range(rank):
                output.type.tensor_type.shape.dim.add()
    return made


def certify(rule, *instances, **options):
    certify_rule(rule, *instances, target="onnxruntime", tolerance=1e-5, **options)


def refuse(rule, *instances):
    refuse_rule(rule, *instances, target="onnxruntime")


def parts(operand):
    """The nodes around a product, all sizes as numbers or in the shapes of the operands."""
    right = operand.split("[")[1].split("]")[0].split(",")[2:]
    sizes = {"4": "four", "N": "n"}
    axis = 2 + right.index("N")
    return (
        f"n = Shape<start={axis}, end={axis + 1}>(z)",
        "m = Shape<start=2, end=3>(x)",
        "s = Concat<axis=0>(l, m, four)",
        f"t = Concat<axis=0>(l, {', '.join(sizes[size] for size in right)})",
        "u = Concat<axis=0>(l, two, m, n)",
        "a = Reshape<allowzero=1>(x, s)",
        "b = Reshape<allowzero=1>(z, t)",
    )


@pytest.mark.parametrize("k", range(3))
def test_products(k):
    operand, product = FORMS[k]
    operands = f"float[B,2,M,4] x, {operand}"
    nodes = (*parts(operand), f"p = {product}", "y = Reshape<allowzero=1>(p, u)")
    made = graph(operands, *nodes, **NUMBERS, **SIZES)
    certify(rules.product_of_heads[k], made, times=1, gone="Reshape")
    refuse(
        rules.product_of_heads[k],
        graph(operands, *nodes, outputs="y, p", **NUMBERS, rank=3),
        graph(operands.replace("B,2", "B,6", 1), *nodes, **NUMBERS),
        graph(
            operands,
            *nodes[:-1],
            "y = Reshape<allowzero=1>(p, v)",
            **NUMBERS,
            **ints(v=[0, -1]),
            rank=2,
        ),
    )


@pytest.mark.parametrize("k", range(3))
def test_products_and_what_is_added(k):
    operand, product = FORMS[k]
    operands = f"float[B,2,M,4] x, {operand}, float[Q,M,N] c"
    # as many as the products
    shape = ("bh = Shape<end=1>(a)", "w = Concat<axis=0>(bh, m, n)", "d = Expand(c, w)")
    nodes = (
        *parts(operand),
        *shape,
        f"p = {product}",
        "e = Add(d, p)",
        "y = Reshape<allowzero=1>(e, u)",
    )
    sizes = {"sizes": {**SIZES["sizes"], "Q": (1,)}}
    operands = operands.replace("Q,M", "1,M")
    certify(rules.biased_product_of_heads[k], graph(operands, *nodes, **NUMBERS, **sizes), times=1)
    refuse(
        rules.biased_product_of_heads[k],
        graph(operands, *nodes, outputs="y, e", **NUMBERS, rank=3),
        graph(operands, *(n.replace("(d, p)", "(c, p)") for n in nodes), **NUMBERS),
    )
