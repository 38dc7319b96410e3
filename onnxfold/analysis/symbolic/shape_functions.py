"""The registry of shape functions, which infer an op's results, and their argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import Array, Fact, Shape, of_type


@dataclass(slots=True)
class Application:
    """An op applied to the facts of its inputs."""

    op_type: str
    inputs: Sequence[Fact | None]
    """None for an omitted optional input."""
    attributes: Mapping[str, Any]
    """Python values of the node's own attributes."""
    opset: int
    n_outputs: int
    algebra: Algebra

    agreeing: list[tuple[Number, Number]] | None = None
    """Pairs of sizes that must be equal, or the node fails; None to not collect them."""

    def input(self, k: int) -> Fact | None:
        """Return the fact of an input; None if it is omitted."""
        return self.inputs[k] if k < len(self.inputs) else None

    def fact(self, k: int) -> Fact:
        """Return the fact of a required input. Raises Undecided if it is omitted."""
        fact = self.input(k)
        if fact is None:
            raise Undecided
        return fact

    def shape(self, k: int) -> Shape:
        """Return the shape of an input. Raises Undecided if it is unknown."""
        fact = self.input(k)
        if fact is None or fact.shape is None:
            raise Undecided
        return fact.shape

    def shapes(self) -> list[Shape]:
        """Return the shapes of all inputs. Raises Undecided if one is unknown."""
        return [self.shape(k) for k in range(len(self.inputs))]

    def objects(self, k: int) -> Array | None:
        """Return the elements of an input as Python numbers and expressions."""
        fact = self.input(k)
        return None if fact is None else fact.objects

    def known(self, k: int) -> Array | None:
        """Return the elements of an input if all are numbers."""
        fact = self.input(k)
        return None if fact is None else fact.known

    def require(self, holds: bool) -> None:
        """Record that the node fails in every run unless a condition holds."""
        if not holds:
            self.algebra.required.append(-1)

    def agree(self, one: Number, other: Number) -> None:
        """Record that the node fails unless these sizes are equal."""
        if self.agreeing is not None and one != other:
            self.agreeing.append((one, other))

    def agree_if(self, certain: bool) -> None:
        """Record that the node may fail for some sizes unless a condition holds."""
        self.agree(1, int(certain))

    def broadcast(self, *shapes: Shape) -> Shape:
        """Return the common shape of shapes that broadcast."""
        result: list[Number] = [1] * max(map(len, shapes), default=0)
        for shape in shapes:
            first = len(result) - len(shape)
            for axis, size in enumerate(shape, first):
                if 1 not in (size, result[axis]):
                    self.agree(result[axis], size)
                result[axis] = self.algebra.broadcast(result[axis], size)
        return tuple(result)

    def tensor(self, shape: Sequence[Number] | None, dtype: ir.DataType | None) -> list[Fact]:
        """Return the only output: a tensor with this shape and dtype."""
        return [of_type(dtype, shape, self.algebra)]

    def like(self, shape: Sequence[Number] | None, k: int = 0) -> list[Fact]:
        """Return the only output: a tensor with this shape and the dtype of an input."""
        return self.tensor(shape, self.fact(k).dtype)

    def numbers(self, k: int) -> list[Number]:
        """Return the elements of an input that is a list of integers, see :meth:`objects`.

        Raises:
            Undecided: The elements are unknown, or the input has not exactly one axis.
        """
        objects = self.objects(k)
        if objects is None or objects.ndim != 1:
            raise Undecided
        return list(objects)

    def integers(self, name: str, position: int) -> list[int] | None:
        """Return a list of integers that is an attribute in older opsets, an input in newer ones.

        None if it is omitted.

        Raises:
            Undecided: The input has unknown elements.
        """
        if name in self.attributes:
            return [int(v) for v in self.attributes[name]]
        if self.input(position) is None:
            return None
        known = self.known(position)
        if known is None:
            raise Undecided
        return [int(v) for v in known.reshape(-1)]


class Undecided(Exception):
    """The shape function cannot decide; onnx's inference is used."""


ShapeFunction = Callable[[Application], Sequence[Fact]]
_FUNCTIONS: dict[tuple[str, str], ShapeFunction] = {}


def shape_function(*op_types: str, domain: str = "") -> Callable[[ShapeFunction], ShapeFunction]:
    """Register a shape function for ops.

    It returns the facts of the outputs or raises :class:`Undecided`.

    Args:
        op_types: The ops.
        domain: The domain of the ops.
    """

    def register(function: ShapeFunction) -> ShapeFunction:
        for op_type in op_types:
            _FUNCTIONS[domain, op_type] = function
        return function

    return register


def find(op_type: str, domain: str = "") -> ShapeFunction | None:
    """Return the shape function of an op."""
    return _FUNCTIONS.get((domain, op_type))


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front. Raises Undecided if it is out of range."""
    if not -rank <= axis < rank:
        raise Undecided
    return axis % rank
