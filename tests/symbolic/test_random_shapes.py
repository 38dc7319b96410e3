"""Random shape arithmetic: whatever is found and rewritten, the bits stay."""

from __future__ import annotations

from fact_check import FactCheck
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from symbolic_check import floats, rewrite

SIZES = [(2, 3, 4), (1, 1, 4), (5, 2, 4), (0, 3, 4), (3, 0, 4), (4, 7, 4)]


class RandomModel:
    """Grows a graph by drawing: lists of sizes, tensors of these sizes, and lists of theirs."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []
        self._lists = ["s"]
        self._ones: list[str] = []
        self._tensors = ["x"]
        self._ranks = {"x": 3}
        self._node("Shape", ["x"], "s")
        for k in range(3):
            self._ones.append(self._node("Gather", ["s", self._constant([k])]))
        steps = (self._arithmetic, self._concat, self._choose, self._reshape, self._expand)
        for _ in range(draw(st.integers(1, 12))):
            draw(st.sampled_from((*steps, self._slice, self._shape)))()

    def model(self) -> ModelProto:
        """All lists and tensors are outputs."""
        outputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, [f"{name}_n"])
            for name in (*self._lists, *self._ones)
        ]
        for name in self._tensors[1:]:
            dims = [f"{name}_{k}" for k in range(self._ranks[name])]
            outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "S", 4])
        graph = helper.make_graph(self._nodes, "g", [x], outputs, self._constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def _node(self, op: str, operands: list[str], name: str = "", **attributes: int) -> str:
        name = name or f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, operands, [name], **attributes))
        return name

    def _constant(self, numbers: list[int]) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers))
        return name

    def _add(self, tensor: str, rank: int) -> None:
        self._tensors.append(tensor)
        self._ranks[tensor] = rank

    def _one(self) -> str:
        return self._draw(st.sampled_from(self._ones))

    def _tensor(self) -> str:
        return self._draw(st.sampled_from(self._tensors))

    def _number(self, low: int = -3, high: int = 6) -> str:
        return self._constant([self._draw(st.integers(low, high))])

    def _arithmetic(self) -> None:
        op = self._draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max"]))
        if op in ("Div", "Mod"):  # a division by 0 ends the process
            other = self._constant([self._draw(st.sampled_from([-3, -2, 1, 2, 3, 4]))])
        else:
            other = self._draw(st.sampled_from([self._one, self._number]))()
        self._ones.append(self._node(op, [self._one(), other]))

    def _concat(self) -> None:
        count = self._draw(st.integers(1, 3))
        parts = [self._draw(st.sampled_from([self._one, self._number]))() for _ in range(count)]
        self._lists.append(self._node("Concat", parts, axis=0))

    def _choose(self) -> None:
        op = self._draw(st.sampled_from(["Equal", "Less", "GreaterOrEqual"]))
        condition = self._node(op, [self._one(), self._number()])
        self._ones.append(self._node("Where", [condition, self._one(), self._one()]))

    def _reshape(self) -> None:
        parts = [self._one(), self._number(2, 2)]
        parts.insert(self._draw(st.integers(0, 2)), self._constant([-1]))
        to = self._node("Concat", parts, axis=0)
        allow = self._draw(st.integers(0, 1))
        self._add(self._node("Reshape", [self._tensor(), to], allowzero=allow), 3)

    def _expand(self) -> None:
        kept = self._node("Max", [self._one(), self._constant([0])])
        tensor = self._tensor()
        one = self._node("Unsqueeze", [tensor, self._constant([0])])
        to = self._node("Concat", [kept, *[self._constant([1])] * 3], axis=0)
        self._add(self._node("Expand", [one, to]), self._ranks[tensor] + 1)

    def _slice(self) -> None:
        bounds = [self._draw(st.sampled_from([self._one, self._number]))() for _ in range(2)]
        axis = self._constant([self._draw(st.integers(0, 2))])
        step = self._constant([self._draw(st.sampled_from([1, 1, 2, -1]))])
        tensor = self._tensor()
        self._add(self._node("Slice", [tensor, *bounds, axis, step]), self._ranks[tensor])

    def _shape(self) -> None:
        name = self._node("Shape", [self._tensor()])
        self._lists.append(name)
        self._ones.append(self._node("Gather", [name, self._number(0, 2)]))


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    return RandomModel(draw).model()


def _allows_zero(model: ModelProto) -> bool:
    return any(a.name == "allowzero" and a.i for n in model.graph.node for a in n.attribute)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(model=models())
def test_facts_and_bits(model):
    try:
        check = FactCheck(model)
        # with allowzero, ONNX forbids a -1 beside a 0, and onnxruntime does not notice
        sizes = [s for s in SIZES if 0 not in s or not _allows_zero(model)]
        accepted = [feeds for feeds in ({"x": floats(*s)} for s in sizes) if check.check(feeds)]
        if accepted:
            rewrite(model).check(*accepted)
    except Fail as error:
        # a constant shape with two -1, or a -1 beside a 0: ONNX forbids it, onnxruntime finds it
        # when it loads the model but, with allowzero, not when it runs it
        assert "arget shape" in str(error)
