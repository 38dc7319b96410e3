"""The rule of rules/repeated_heads.py."""

import pytest
from certify import certify as certify_rule
from certify import graph as plain_graph
from certify import ints, random
from certify import refuse as refuse_rule
from onnxfold.rules import repeated_heads as rules

OPERANDS = "float[B,S,24] x, float[B,2,L,4] k, float[B,2,L,4] v"
NODES = (
    "a = Unsqueeze(k, two)",
    "b = Expand(a, times)",
    "c = Reshape(b, all)",
    "d = Unsqueeze(v, two)",
    "e = Expand(d, times)",
    "f = Reshape(e, all)",
)
NODE = "y = com.microsoft.MultiHeadAttention<num_heads=6, scale=0.3>(x, c, f)"
CONSTANTS = ints(two=[2], times=[1, 1, 3, 1, 1], all=[0, 6, -1, 4])
SIZES = {"sizes": {"B": (1, 2), "S": (1, 3), "L": (1, 5)}}


def graph(*arguments, **options):
    made = plain_graph(*arguments, domains={"com.microsoft": 1}, **options)
    for output in made.model.graph.output:
        if not output.type.WhichOneof("value"):  # onnx infers nothing for this domain
            output.type.tensor_type.elem_type = 1
            for _ in range(3):
                output.type.tensor_type.shape.dim.add()
    return made


def certify(*instances):
    certify_rule(
        rules.attention_of_groups,
        *instances,
        target="onnxruntime",
        tolerance=1e-5,
        times=1,
        gone="Expand",
    )


def refuse(*instances):
    refuse_rule(rules.attention_of_groups, *instances, target="onnxruntime")


def test_groups():
    certify(graph(OPERANDS, *NODES, NODE, **CONSTANTS, **SIZES))


@pytest.mark.parametrize("batch", ["B", "1"])
def test_mask(batch):
    operands = f"{OPERANDS}, float[{batch},1,S,L] m"
    certify(graph(operands, *NODES, NODE.replace("f)", "f,,,m)"), **CONSTANTS, **SIZES))


def test_what_is_not_repeated_for_groups():
    of_each = OPERANDS + ", float[B,6,S,L] m"
    refuse(
        graph(of_each, *NODES, NODE.replace("f)", "f,,,m)"), **CONSTANTS),
        graph(OPERANDS, *NODES, NODE.replace("f)", "f, bias)"), bias=random(72), **CONSTANTS),
        # the groups would be the other way round
        graph(OPERANDS, *NODES, NODE, **{**CONSTANTS, **ints(two=[1])}),
        graph(OPERANDS, *NODES, NODE.replace("f)", "v)"), **CONSTANTS),
    )
