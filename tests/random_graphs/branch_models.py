"""Generate random models whose branches compute equal values from equal weights.

Node names repeat in different graphs of a model, and some conditions are constant. If an optimizer
replaces an If by the nodes of a branch, the outer graph already contains the names of these nodes.
"""

import random
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .generate import Case

_OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
_SHARE_OF_CONSTANT_CONDITIONS = 0.3
_SHARE_OF_NAMED_NODES = 0.8


class Maker:
    """Generator of one model, in which many nodes compute equal values.

    The constant matrices all have the same size. Few kinds of ops compute them from two weights.

    Args:
        rng: Source of the random choices.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.size = rng.choice([2, 6, 24, 64, 150])
        self._weights = [random_matrix(k, self.size, self.size) for k in range(2)]
        self._count = 0

    def model(self) -> onnx.ModelProto:
        """Return the model. In 30 % of the models, the branches are in a function."""
        in_function = self._rng.random() < 0.3
        nodes = []
        tensors = []
        constants = ["w"]
        for _ in range(self._rng.randint(0, 2)):
            constants.append(self._constant(constants, nodes, None if in_function else tensors))
        values = ["x"]
        for _ in range(self._rng.randint(1, 3)):
            nodes.append(self._if(0, constants, values))
            values.append(nodes[-1].output[0])
        nodes.append(helper.make_node("Tanh", [values[-1]], ["y"]))
        weight = numpy_helper.from_array(self._weights[0], "w")
        functions = []
        two = numpy_helper.from_array(np.array(2), "two")
        if in_function:
            nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
            nodes.insert(0, helper.make_node("Constant", [], ["two"], value=two))
            of = ("local", "f", ["x", "c"], ["y"], nodes, _OPSETS)
            functions.append(helper.make_function(*of))
            nodes = [helper.make_node("f", ["x", "c"], ["y"], domain="local")]
        else:
            tensors += [weight, two]
        inputs = [_info("x", [2, self.size]), _info("c", [], TensorProto.BOOL)]
        graph = helper.make_graph(nodes, "g", inputs, [_info("y", [2, self.size])], tensors)
        options = {"opset_imports": _OPSETS, "ir_version": 9, "functions": functions}
        return helper.make_model(graph, **options)

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _constant(
        self,
        constants: list[str],
        nodes: list[onnx.NodeProto],
        tensors: list[onnx.TensorProto] | None,
    ) -> str:
        """Add a copy of a weight, or a matrix computed from other constants, and return its name.

        The copy is an initializer in ``tensors``, or a Constant if ``tensors`` is None.
        """

        def add(op: str, inputs: Iterable[str], **attributes: object) -> str:
            nodes.append(helper.make_node(op, inputs, [self._name()], **attributes))
            return nodes[-1].output[0]

        first, second = self._rng.choices(constants, k=2)
        op = self._rng.choice(["Transpose", "Mul", "Reshape", "Softmax", "Neg", "weight", "Concat"])
        if op == "weight":
            tensor = numpy_helper.from_array(self._rng.choice(self._weights), self._name())
            if tensors is None:
                return add("Constant", [], value=tensor)
            tensors.append(tensor)
            return tensor.name
        if op == "Reshape":
            flat = add(op, [first, add("Constant", [], value_ints=[-1])])
            sizes = add("Constant", [], value_ints=[self.size, self.size])
            return add(op, [flat, sizes])
        if op == "Concat":
            joined = add(op, [first, second], axis=0)
            halves = [self._name(), self._name()]
            nodes.append(helper.make_node("Split", [joined], halves, axis=0))
            return self._rng.choice(halves)
        return add(op, [first, second] if op == "Mul" else [first])

    def _if(self, depth: int, constants: list[str], values: list[str]) -> onnx.NodeProto:
        then, other = (self._branch(depth, [*constants], [*values]) for _ in range(2))
        if self._rng.random() < 0.2:  # one of the branches contains only an Identity
            name = self._name()
            nodes = [helper.make_node("Identity", [values[-1]], [name])]
            other = helper.make_graph(nodes, self._name(), [], [_info(name, None)])
            if self._rng.random() < 0.5:
                then, other = other, then
        return helper.make_node("If", ["c"], [self._name()], then_branch=then, else_branch=other)

    def _loop(self, depth: int, constants: list[str], values: list[str]) -> onnx.NodeProto:
        """Return a Loop of two iterations whose body is a random branch."""
        iteration, condition, state, next_condition, scaled = (self._name() for _ in range(5))
        body = self._branch(depth, [*constants], [*values, state])
        body.input.append(_info(iteration, [], TensorProto.INT64))
        body.input.append(_info(condition, [], TensorProto.BOOL))
        body.input.append(_info(state, None))
        body.node.append(helper.make_node("Identity", [condition], [next_condition]))
        body.node.append(helper.make_node("Tanh", [body.output[0].name], [scaled]))
        del body.output[:]
        body.output.append(_info(next_condition, [], TensorProto.BOOL))
        body.output.append(_info(scaled, None))
        return helper.make_node("Loop", ["two", "", values[-1]], [self._name()], body=body)

    def _branch(self, depth: int, constants: list[str], values: list[str]) -> onnx.GraphProto:
        nodes: list[onnx.NodeProto] = []
        tensors: list[onnx.TensorProto] = []
        for _ in range(self._rng.randint(1, 6)):
            draw = self._rng.random()
            if draw < 0.55:
                constants.append(self._constant(constants, nodes, tensors))
            elif draw < 0.8 or depth == 3:
                operands = [self._rng.choice(values), self._rng.choice(constants)]
                nodes.append(helper.make_node("MatMul", operands, [self._name()]))
                values.append(nodes[-1].output[0])
            else:
                make = self._if if draw < 0.93 else self._loop
                nodes.append(make(depth + 1, constants, values))
                values.append(nodes[-1].output[0])
        last = self._name()
        nodes.append(helper.make_node("MatMul", [values[-1], constants[-1]], [last]))
        return helper.make_graph(nodes, self._name(), [], [_info(last, None)], tensors)


def generate(seed: int) -> Case:
    maker = Maker(random.Random(seed))
    x = random_matrix(seed, 2, maker.size)
    model = maker.model()
    # A second source of random choices, which does not depend on the number of choices of `Maker`.
    rng = random.Random(f"names {seed}")
    roots: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    for root in roots:
        _make_conditions_constant(root, rng)
        _number_nodes(root, rng)
    return Case(seed, model, [{"x": x, "c": np.array(c)} for c in (False, True)])


def _make_conditions_constant(
    root: onnx.GraphProto | onnx.FunctionProto, rng: random.Random
) -> None:
    """Replace some conditions in a graph or a function and in its subgraphs by constants."""
    conditions = []
    for graph in _graphs_in(root):
        conditions += [node.input for node in graph.node if node.op_type == "If"]
    for inputs in conditions:
        if rng.random() < _SHARE_OF_CONSTANT_CONDITIONS:
            inputs[0] = rng.choice(["yes", "no"])
    for name, condition in (("yes", True), ("no", False)):
        tensor = numpy_helper.from_array(np.array(condition), name)
        if isinstance(root, onnx.GraphProto):
            root.initializer.append(tensor)
        else:
            root.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))


def _number_nodes(root: onnx.GraphProto | onnx.FunctionProto, rng: random.Random) -> None:
    """Give most nodes names with their index in their graph, as some exporters do."""
    for graph in _graphs_in(root):
        for number, node in enumerate(graph.node):
            if rng.random() < _SHARE_OF_NAMED_NODES:
                node.name = f"node_{number}"


def _graphs_in(
    root: onnx.GraphProto | onnx.FunctionProto,
) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield a graph or a function and all its subgraphs."""
    yield root
    for node in root.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs_in(attribute.g)


def random_matrix(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _info(
    name: str, shape: list[int] | None, dtype: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)
