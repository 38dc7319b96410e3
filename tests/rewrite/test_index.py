"""The index of rules: what it leaves out could not have matched."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfold import storage
from onnxfold.rewrite.driver import RuleIndex
from onnxfold.rewrite.facts import Facts
from onnxfold.rewrite.matcher import find_match
from onnxfold.rewrite.rule import Rule, builtin_rule_sets

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
    for dtype in (np.float32, np.float16, np.int64, np.bool_)
    for value in (0, 1, 2, 0.5, [1, 1], [])
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
def test_only_what_cannot_match_is_left_out(op_type: str) -> None:
    total = 0
    for constant in CONSTANTS:
        for first in (False, True):
            found, missing = left_out(with_constant(op_type, constant, first))
            assert not missing, (constant, first)
            total += found
    assert total, "no rule was tried that matches"


def test_something_is_left_out() -> None:
    model = with_constant("Mul", np.array(1, np.float32), False)
    index = RuleIndex(RULES, model.opset_imports, Facts(model))
    candidates = [rule.name for rule in index.candidates(model.graph[0])]
    assert "multiply_by_one" in candidates and "mul_mul" not in candidates


def test_in_a_real_model() -> None:
    found, missing = left_out(storage.load(MODELS / "swin.onnx"))
    assert found and not missing
