"""Models in half precision: random ones of moves and arithmetic, and a real one made half."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPTION = {"half": "carried"}


class RandomModel:
    """A model of float16 values of shape [N, 4, 4], some nodes of which nobody reads.

    Args:
        seed: Decides about all of it.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._values = ["x", "z"]
        self._constants = [self._weight(self._numbers.standard_normal((4, 4))) for _ in range(2)]
        self._constants.append(self._weight(np.float64(self._random.choice([0.1, 0.5, 1, 3]))))
        steps = (
            *(self._arithmetic, self._arithmetic, self._unary, self._move, self._move),
            *(self._reshape, self._reshape_to_shape, self._join, self._select, self._convert),
            *(self._normalize, self._constant, self._scale_by_size, self._product),
        )
        for _ in range(self._random.randint(8, 24)):
            self._random.choice(steps)(self._random.choice(self._values[-6:]))
        self.proto = self._model()

    def feeds(self, n: int) -> dict[str, np.ndarray]:
        """Inputs for N = ``n``."""
        numbers = np.random.default_rng(n)
        return {name: numbers.standard_normal((n, 4, 4)).astype(np.float16) for name in "xz"}

    def _model(self) -> onnx.ModelProto:
        read = {name for node in self._nodes for name in node.input}
        outputs = [v for v in self._values[2:] if v not in read] or [self._values[-1]]
        outputs = outputs[: self._random.choice([2, 9, 9])]
        half = TensorProto.FLOAT16
        graph = helper.make_graph(
            self._nodes,
            "random",
            [helper.make_tensor_value_info(name, half, ["N", 4, 4]) for name in "xz"],
            [helper.make_tensor_value_info(name, half, None) for name in outputs],
            self._weights,
        )
        opset = helper.make_opsetid("", 18)
        return helper.make_model(graph, opset_imports=[opset], ir_version=9)

    def _weight(self, array: np.ndarray, dtype: type = np.float16) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array).astype(dtype), name))
        return name

    def _ints(self, *numbers: int) -> str:
        return self._weight(np.array(numbers), np.int64)

    def _node(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [f"v{len(self._nodes)}_{k}" for k in range(outputs)]
        self._nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0]

    def _other(self) -> str:
        return self._random.choice(self._values + self._constants)

    def _arithmetic(self, x: str) -> None:
        op = self._random.choice(["Add", "Mul", "Sub"])
        self._values.append(self._node(op, x, self._other()))

    def _unary(self, x: str) -> None:
        op = self._random.choice(["Neg", "Sigmoid", "Abs", "Relu"])
        self._values.append(self._node(op, x))

    def _move(self, x: str) -> None:
        kind = self._random.randrange(4)
        if kind == 0:
            self._values.append(self._node("Transpose", x, perm=[0, 2, 1]))
        elif kind == 1:
            end = self._ints(self._random.choice([4, 100, 2**62]))
            self._values.append(self._node("Slice", x, self._ints(0), end, self._ints(1)))
        elif kind == 2:
            self._values.append(self._node("Identity", x))
        else:
            self._node(self._random.choice(["Shape", "Transpose"]), x)  # nobody reads it

    def _reshape(self, x: str) -> None:
        moved = self._node("Reshape", x, self._ints(0, 2, 8))
        if self._random.random() < 0.5:
            moved = self._node("Reshape", moved, self._ints(-1, 16))
        self._values.append(self._node("Reshape", moved, self._ints(-1, 4, 4)))

    def _reshape_to_shape(self, x: str) -> None:
        shape = self._node("Shape", x)
        if self._random.random() < 0.4:
            self._values.append(self._node("Expand", x, shape))
            return
        first = self._node("Gather", shape, self._ints(0))
        target = self._node("Concat", first, self._ints(4, 4), axis=0)
        self._values.append(self._node("Reshape", x, target))

    def _join(self, x: str) -> None:
        joined = self._node("Concat", x, self._random.choice(self._values), axis=1)
        first = self._node("Split", joined, self._ints(4, 4), outputs=2, axis=1)
        self._values.append(first)
        if self._random.random() < 0.5:
            self._values.append(first[:-1] + "1")

    def _select(self, x: str) -> None:
        other = self._other()
        self._values.append(self._node("Where", self._node("Greater", x, other), x, other))

    def _convert(self, x: str) -> None:
        wide = self._node("Cast", x, to=TensorProto.FLOAT)
        if self._random.random() < 0.5:
            wide = self._node("Sqrt", self._node("Abs", wide))
        self._values.append(self._node("Cast", wide, to=TensorProto.FLOAT16))

    def _normalize(self, x: str) -> None:
        scale = self._weight(self._numbers.standard_normal(4))
        self._values.append(self._node("LayerNormalization", x, scale))

    def _constant(self, x: str) -> None:
        constant = self._random.choice(self._constants)
        kind = self._random.randrange(3)
        if kind == 0:
            self._constants.append(self._node("Identity", constant))
        elif kind == 1:
            other = self._random.choice(self._constants)
            self._constants.append(self._node("Add", constant, other))
        else:
            wide = self._weight(self._numbers.standard_normal((4, 4)), np.float32)
            self._constants.append(self._node("Cast", wide, to=TensorProto.FLOAT16))

    def _scale_by_size(self, x: str) -> None:
        size = self._node("Gather", self._node("Shape", x), self._weight(np.array(1), np.int64))
        root = self._node("Sqrt", self._node("Cast", size, to=TensorProto.FLOAT))
        self._values.append(self._node("Mul", x, self._node("Cast", root, to=TensorProto.FLOAT16)))

    def _product(self, x: str) -> None:
        self._values.append(self._node("MatMul", x, self._random.choice(self._values)))


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """A float32 model in float16: weights, constants, casts, inputs and outputs."""
    graph = model.graph
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    tensors = [*graph.initializer]
    for node in graph.node:
        tensors += [a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model
