"""A node of onnxruntime's own domain on operands at several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class Operand:
    """An input of a case: fed at every size, or an initializer if it has elements."""

    dtype: type
    dims: tuple[int | str, ...] = ()
    below: int = 5
    elements: np.ndarray | None = None

    def feed(self, sizes: Mapping[str, int], generator: np.random.Generator) -> np.ndarray:
        shape = [d if isinstance(d, int) else sizes[d] for d in self.dims]
        if np.dtype(self.dtype).kind == "f":
            return generator.standard_normal(shape).astype(self.dtype)
        return generator.integers(0, self.below, shape).astype(self.dtype)


def f32(*dims: int | str) -> Operand:
    return Operand(np.float32, dims)


def u8(*dims: int | str) -> Operand:
    return Operand(np.uint8, dims, 200)


def i8(*dims: int | str) -> Operand:
    return Operand(np.int8, dims, 100)


def i32(*dims: int | str, below: int = 5) -> Operand:
    return Operand(np.int32, dims, below)


def i64(*dims: int | str, below: int = 5) -> Operand:
    return Operand(np.int64, dims, below)


def constant(elements: Any, dtype: type = np.float32) -> Operand:
    return Operand(dtype, elements=np.asarray(elements, dtype))


SCALE = constant(0.1)
ZERO = constant(3, np.uint8)
SIGNED_ZERO = constant(3, np.int8)


@dataclass(frozen=True)
class Case:
    """A node, which of its outputs are told, and the sizes at which it is run."""

    op: str
    inputs: Sequence[Operand | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    told: Sequence[int] = (0,)
    """Outputs whose dtype must be known, and their shapes where those of operands are numbers."""
    typed: Sequence[int] = ()
    """Outputs of which at least the dtype must be known."""
    silent: Sequence[int] = ()
    """Outputs that are there and of which nothing may be told."""
    sizes: Sequence[Mapping[str, int]] = ({},)
    is_open: bool = False
    """Elements decide about the shape."""
    domain: str = DOMAIN
    opset: int = 17

    def __str__(self) -> str:
        return self.op

    def model(self, fixed: Mapping[str, int] | None = None) -> onnx.ModelProto:
        """The model of that node, its dims with names or, if they are given, of these sizes."""
        known = fixed or {}
        names = [f"i{k}" if operand else "" for k, operand in enumerate(self.inputs)]
        asked = {*self.told, *self.typed, *self.silent}
        outputs = [f"o{k}" if k in asked else "" for k in range(max(asked) + 1)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attributes)
        inputs, initializers = [], []
        for name, operand in zip(names, self.inputs, strict=True):
            if operand is None:
                continue
            if operand.elements is None:
                dtype = helper.np_dtype_to_tensor_dtype(np.dtype(operand.dtype))
                inputs.append(
                    helper.make_tensor_value_info(
                        name, dtype, [known.get(d, d) for d in operand.dims]
                    )
                )
            else:
                initializers.append(onnx.numpy_helper.from_array(operand.elements, name))
        results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
        graph = helper.make_graph([node], "g", inputs, results, initializers)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self) -> Iterator[dict[str, np.ndarray]]:
        generator = np.random.default_rng(0)
        for sizes in self.sizes:
            yield {
                f"i{k}": operand.feed(sizes, generator)
                for k, operand in enumerate(self.inputs)
                if operand is not None and operand.elements is None
            }


BS = ({"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 3, "S": 7})
BSP = tuple({**sizes, "P": p} for sizes, p in zip(BS, (4, 1, 2), strict=True))
HW = ({"B": 2, "H": 9, "W": 8}, {"B": 1, "H": 5, "W": 7}, {"B": 1, "H": 16, "W": 6})

H = 32
"""Hidden size of the models' ops; 4 heads of 8."""

TOKENS = f32("B", "S", H)
VECTOR = f32(H)
GATE = {"num_heads": 4}
