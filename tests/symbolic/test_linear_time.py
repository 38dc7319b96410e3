"""Ten times the shape arithmetic takes ten times the work, whatever sizes are computed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from call_count import calls_of
from onnx import TensorProto, helper, numpy_helper

from onnxfold import storage
from onnxfold.passes.symbolic_shapes import SymbolicShapes
from onnxfold.passes.value_info import ValueInfo


class Nodes:
    """A graph that grows node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def ints(self, value: Any) -> str:
        name = f"c{value}"
        self._constants[name] = numpy_helper.from_array(np.array(value, np.int64), name)
        return name

    def size(self, value: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", value), self.ints(axis))

    def model(self, output: str, dtype: int = TensorProto.INT64) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "S", 8])],
            [helper.make_tensor_value_info(output, dtype, None)],
            list(self._constants.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reshapes(count: int) -> onnx.ModelProto:
    """What exporters write: sizes are asked for, multiplied, and put together."""
    g, current = Nodes(), "x"
    while len(g.nodes) < count:
        batch, rows = g.size(current, 0), g.size(current, 1)
        flat = g.op("Unsqueeze", g.op("Mul", batch, rows), g.ints([0]))
        flat = g.op("Reshape", current, g.op("Concat", flat, g.ints([-1]), axis=0))
        parts = [g.op("Unsqueeze", size, g.ints([0])) for size in (batch, rows)]
        back = g.op("Concat", *parts, g.ints([8]), axis=0)
        current = g.op("Add", g.op("Reshape", g.op("Relu", flat), back), current)
    return g.model(current, TensorProto.FLOAT)


def one_number(count: int) -> onnx.ModelProto:
    """A number that is computed from the one before, over and over."""
    g, rng = Nodes(), random.Random(0)
    other, current = g.size("x", 1), g.size("x", 0)
    while len(g.nodes) < count:
        op_type = rng.choice(["Add", "Mul", "Div", "Sub", "Max", "Min"])
        operand = g.ints(rng.randint(2, 9)) if rng.random() < 0.7 else other
        current = g.op(op_type, current, operand)
    return g.model(current)


def windows(count: int) -> onnx.ModelProto:
    """Sizes of sizes: halves of halves, joined and cut again."""
    g, current = Nodes(), "x"
    while len(g.nodes) < count:
        half = g.op("MaxPool", current, kernel_shape=[2], strides=[2])
        twice = g.op("Concat", half, half, axis=2)
        end = g.op("Unsqueeze", g.size(half, 1), g.ints([0]))
        cut = g.op("Slice", twice, g.ints([0]), end, g.ints([1]))
        current = g.op("Concat", cut, twice, axis=1)
    return g.model(current, TensorProto.FLOAT)


def squeezes(count: int) -> onnx.ModelProto:
    """Axes that may be squeezed, of which some must be."""
    g, current = Nodes(), "x"

    def branch(op_type: str, *inputs: str) -> onnx.GraphProto:
        name = f"{op_type}{len(g.nodes)}"
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op_type, inputs, [name])], name, [], [result])

    while len(g.nodes) < count:
        axis = g.ints([-1])
        branches = {
            "then_branch": branch("Squeeze", current, axis),
            "else_branch": branch("Identity", current),
        }
        is_one = g.op("Equal", g.size(current, -1), g.ints(1))
        current = g.op("Relu", g.op("If", is_one, **branches))
        if len(g.nodes) % 7 == 0:
            current = g.op("Unsqueeze", g.op("Transpose", current, perm=[1, 0]), axis)
    return g.model(current, TensorProto.FLOAT)


def lists(count: int) -> onnx.ModelProto:
    """A long chain of arithmetic on one size, and lists of sizes made of what is on the way."""
    ops = ["Mul", "Add", "Div", "Sub", "Max", "Mod", "Min"]
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["a0"]),
        helper.make_node("Gather", ["s", "one"], ["b"]),
    ]
    outputs = []
    for k in range(count // 3):
        other = "b" if k % 3 else "three"
        nodes.append(helper.make_node(ops[k % len(ops)], [f"a{k}", other], [f"a{k + 1}"]))
        nodes.append(helper.make_node("Concat", [f"a{k + 1}", "b"], [f"c{k}"], axis=0))
        nodes.append(helper.make_node("ConstantOfShape", [f"c{k}"], [f"o{k}"]))
        outputs.append(f"o{k}")
    nodes.append(helper.make_node("Sum", outputs, ["y"]))
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [1], [number])
        for name, number in (("zero", 0), ("one", 1), ("three", 3))
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "S"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("make", [reshapes, one_number, windows, squeezes, lists])
def test_work_grows_with_the_nodes(make):
    def work(count: int) -> int:
        model = storage.from_proto(make(count))
        return calls_of(lambda: (SymbolicShapes()(model), ValueInfo()(model)))

    work(100)  # what is imported and looked up once
    assert work(2_000) <= 12 * work(200)
