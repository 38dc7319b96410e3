"""The index of rules: what it leaves out could not have matched."""

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold import storage
from onnxfold.rewrite import any_of, filled, op, optional, rule, values
from onnxfold.rewrite.facts import Facts
from onnxfold.rewrite.index import RuleIndex
from onnxfold.rewrite.matcher import find_match
from onnxfold.rewrite.rule import Rule
from onnxfold.rewrite.rule_set import builtin_rule_sets

RULES = [rule for rules in builtin_rule_sets() for rule in rules]
BY_OP: dict[str, list[Rule]] = {}
for each in RULES:
    for root in each.roots:
        for name in getattr(root, "op", root).op_types:
            BY_OP.setdefault(name, []).append(each)
OPSET = 21
MODELS = Path(__file__).parents[2] / "models"

CONSTANTS = [
    np.array(value, dtype)
    for dtype in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16, np.int64, np.uint8)
    for value in (0, 1, 2, 0.5, [1, 1], [1, 2], [[0]], [])
] + [
    np.array(-0.0, np.float32),
    np.array([0.0, -0.0], np.float32),
    np.array(-1, np.float32),
    np.array([-1, -1], np.int32),
    np.array(math.nan, np.float32),
    np.array(math.inf, np.float16),
    np.array(2**53 + 1, np.int64),
    np.array(True),
    np.array([False, False]),
    np.ones(1000, np.float32),  # more than is looked at
    np.zeros((20, 20), np.int64),
]


def with_constant(op_type: str, constant: np.ndarray, first: bool) -> ir.Model:
    """``op_type`` of an input and a constant; the input has a shape that the constant can have."""
    weight = numpy_helper.from_array(constant, "c")
    inputs = ["c", "x"] if first else ["x", "c"]
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y"])],
        "g",
        [helper.make_tensor_value_info("x", weight.data_type, [20, *constant.shape])],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [weight],
    )
    return ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    )


def left_out(model: ir.Model) -> tuple[int, list[str]]:
    """How many rules match some node of a model, and those of them that are no candidates."""
    facts = Facts(model)
    index = RuleIndex(RULES, model.opset_imports, facts)
    missing, found, seen = [], 0, set()
    for node in model.graph.all_nodes():
        likeness = (
            node.op_type,
            tuple(v and v.producer() and v.producer().op_type for v in node.inputs),
        )
        if likeness in seen:
            continue
        seen.add(likeness)
        candidates = index.candidates(node)
        is_constant = facts.known.is_constant(node.outputs[0])
        for one in BY_OP.get(node.op_type, ()):
            if is_constant and not one.on_constants:
                assert one not in candidates
                continue
            low, high = one.opset
            usable = low <= model.opset_imports[""] <= (high or 1 << 30)
            if usable and find_match(one, node, facts) is not None:
                found += 1
                if one not in candidates:
                    missing.append(f"{one.name} at {node.op_type}")
    return found, missing


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "And", "Or"])
def test_numbers_leave_out_only_what_cannot_match(op_type: str) -> None:
    total = 0
    for constant in CONSTANTS:
        for first in (False, True):
            found, missing = left_out(with_constant(op_type, constant, first))
            assert not missing, (constant, first)
            total += found
    assert total, "no rule was tried that matches"


def test_numbers_leave_out_something() -> None:
    def candidates(number: float) -> list[str]:
        model = with_constant("Mul", np.array(number, np.float32), False)
        index = RuleIndex(RULES, model.opset_imports, Facts(model))
        return [rule.name for rule in index.candidates(model.graph[0])]

    assert "multiply_by_one" in candidates(1)
    assert "multiply_by_one" not in candidates(-1)
    assert "multiply_by_one" not in candidates(1.5)


def test_in_a_real_model() -> None:
    found, missing = left_out(storage.load(MODELS / "swin.onnx"))
    assert found and not missing


@pytest.mark.parametrize("made", [optional(filled(0)), any_of(filled(2), filled(0))])
def test_numbers_inside_of_other_patterns(made: Any) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y)
        <float[2] c = {0, 0}> { y = Add(x, c) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    x = values("x")
    wanted = rule(op.Add(x, made) >> x, inexact=True)
    index = RuleIndex([wanted], model.opset_imports, Facts(model))
    assert index.candidates(model.graph[0]) == (wanted,)
