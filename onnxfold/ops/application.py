"""The argument of `Op.shape`: an op with its attributes and the facts of its inputs.

The module also defines the exceptions of definitions, and functions for axes, elements, attributes
and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.ir.storage.tensors import stored_or_default, stored_tensor
from onnxfold.ir.symbolic.expression import Algebra, Number
from onnxfold.ir.symbolic.fact import Array, Fact, Shape, of_type


class Undecided(Exception):
    """Raised if a definition cannot infer the results.

    The inference of facts (`onnxfold.analysis.op_facts`) then uses onnx's shape inference. All
    other callers treat the results as unknown.
    """


INVALID_NODE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that a definition may raise for an invalid node, for example if an axis is missing.

The callers of `Op.shape`, `Op.cost` and `Op.on_bases` catch them."""


@dataclass(slots=True)
class Application:
    """The argument of `Op.shape`: an op with its attributes and the facts of its inputs."""

    op_type: str
    inputs: Sequence[Fact | None]
    """The facts of the inputs; None for an omitted input."""
    attributes: Mapping[str, Any]
    """The attributes of the node as Python values, without defaults."""
    opset: int
    """The version of the ONNX domain, also for an op of another domain."""
    n_outputs: int
    algebra: Algebra
    infer: Callable[[], Sequence[Fact]] | None = None
    """A function that returns the facts from onnx's shape inference. The field is None if onnx's
    shape inference is not available."""

    equal_size_pairs: list[tuple[Number, Number]] | None = None
    """Pairs of sizes that are not certainly equal. The node fails if the sizes of a pair differ.

    The pair (1, 0) means that the node may fail for another reason. The field is None if the caller
    does not collect pairs."""

    def input(self, k: int) -> Fact | None:
        """Return the fact of an input; None if it is omitted."""
        return self.inputs[k] if k < len(self.inputs) else None

    def fact(self, k: int) -> Fact:
        """Return the fact of a required input. Raises Undecided if the input is omitted."""
        fact = self.input(k)
        if fact is None:
            raise Undecided
        return fact

    def shape(self, k: int) -> Shape:
        """Return the shape of a required input.

        Raises:
            Undecided: The input is omitted, or its shape is unknown.
        """
        fact = self.input(k)
        if fact is None or fact.shape is None:
            raise Undecided
        return fact.shape

    def shapes(self) -> list[Shape]:
        """Return the shapes of all inputs.

        Raises:
            Undecided: An input is omitted, or its shape is unknown.
        """
        return [self.shape(k) for k in range(len(self.inputs))]

    def objects(self, k: int) -> Array | None:
        """Return the elements of an integer or boolean input as Python numbers and expressions.

        The result is None if the input is omitted or has another dtype, or if its elements are
        unknown.
        """
        fact = self.input(k)
        return None if fact is None else fact.objects

    def inferred(self) -> Sequence[Fact]:
        """Return the facts of the results from onnx's shape inference.

        Raises:
            Undecided: onnx's shape inference is not available.
        """
        if self.infer is None:
            raise Undecided
        return self.infer()

    def require(self, condition: bool) -> None:
        """If the condition is false, record that the node fails in every run."""
        if not condition:
            self.algebra.required.append(-1)

    def require_equal(self, one: Number, other: Number) -> None:
        """Record that the node fails if these sizes differ. Equal sizes are not recorded."""
        if self.equal_size_pairs is not None and one != other:
            self.equal_size_pairs.append((one, other))

    def may_fail_unless(self, condition: bool) -> None:
        """If the condition is false, record that the node may fail for some sizes."""
        self.require_equal(1, int(condition))

    def broadcast(self, *shapes: Shape) -> Shape:
        """Return the broadcast shape of several shapes, and record the sizes that must be equal."""
        result: list[Number] = [1] * max(map(len, shapes), default=0)
        for shape in shapes:
            offset = len(result) - len(shape)
            for axis, size in enumerate(shape, offset):
                if 1 not in (size, result[axis]):
                    self.require_equal(result[axis], size)
                result[axis] = self.algebra.broadcast(result[axis], size)
        return tuple(result)

    def tensor(self, shape: Sequence[Number] | None, dtype: ir.DataType | None) -> list[Fact]:
        """Return the fact of the only output: a tensor with this shape and dtype, if known."""
        return [of_type(dtype, shape, self.algebra)]

    def like(self, shape: Sequence[Number] | None, k: int = 0) -> list[Fact]:
        """Return the fact of the only output: a tensor with this shape and the dtype of an input.

        Raises:
            Undecided: The input is omitted.
        """
        return self.tensor(shape, self.fact(k).dtype)

    def numbers(self, k: int) -> list[Number]:
        """Return the elements of a 1-D integer input as Python integers and expressions.

        Raises:
            Undecided: The input is omitted, its elements are unknown, or it has another rank.
        """
        objects = self.objects(k)
        if objects is None or objects.ndim != 1:
            raise Undecided
        return list(objects)

    def integers(self, name: str, position: int) -> list[int] | None:
        """Return a list of integers that is an attribute in older opsets, and an input in others.

        Args:
            name: The name of the attribute.
            position: The index of the input, which is read if the node does not have the attribute.

        Returns:
            The integers, or None if the node has neither the attribute nor the input.

        Raises:
            Undecided: The elements of the input are not all numbers.
        """
        if name in self.attributes:
            return [int(v) for v in self.attributes[name]]
        fact = self.input(position)
        if fact is None:
            return None
        if fact.known is None:
            raise Undecided
        return [int(v) for v in fact.known.reshape(-1)]


def axis_of(axis: int, rank: int) -> int:
    """Return an axis as a non-negative index. Raises Undecided if it is out of range."""
    if not -rank <= axis < rank:
        raise Undecided
    return axis % rank


def map_elements(function: Callable[..., Number], *arrays: Array) -> Array:
    """Broadcast the arrays, and return the results of a function for their elements.

    The result is an array of Python objects.
    """
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)


def python_value(attribute: ir.Attr) -> Any:
    """Return an attribute's value. A tensor becomes an array, or None if its dtype is undefined."""
    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return None if value.dtype is ir.DataType.UNDEFINED else value.numpy()
    return value


def constant_array(value: ir.Value | None) -> Array | None:
    """Return the elements of a constant, or of the default value of an input.

    The result is None for other values, and for an omitted input.
    """
    tensor = None if value is None else stored_or_default(value)
    return None if tensor is None else tensor.numpy()


def constant_number(value: ir.Value | None) -> float | None:
    """Return the element of a numeric constant with exactly one element.

    The result is None for other values, and for an omitted input.
    """
    tensor = None if value is None else stored_tensor(value)
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return float(tensor.numpy().item())
