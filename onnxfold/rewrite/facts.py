"""What is asked of a model: by the matcher, and by the functions of rules about what is matched."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis, select_runtime_constants
from onnxfold.analysis.facts import facts_of
from onnxfold.analysis.known import is_exactly
from onnxfold.analysis.symbolic import NotKnown, SymbolicAnalysis
from onnxfold.analysis.symbolic.fact import Shape
from onnxfold.kernels.inference import schema_of
from onnxfold.onnx_ir_private import uses
from onnxfold.ops import Trait, ops

_T = TypeVar("_T")

COMMUTATIVE = frozenset(ops(Trait.COMMUTES))
"""ONNX's own ops that give the same for two operands in either order."""


class Facts:
    """What is known of one model while it is rewritten."""

    def __init__(self, model: ir.Model) -> None:
        facts = facts_of(model)
        self.model = model
        self.scopes = facts.scopes
        self.known = facts.known
        self.types = facts.types
        self._functions = model.functions

    @functools.cached_property
    def constness(self) -> ConstnessAnalysis:
        """What is constant how, by the runtime constants that the model's metadata record."""
        return ConstnessAnalysis(self.model, select_runtime_constants(self.model))

    def opset(self, node: ir.Node) -> int:
        """Return the version of the node's domain; 0 if it is not imported."""
        scope = self.scopes.find(node.graph)
        return 0 if scope is None else scope.opsets.get(node.domain, 0)

    def schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        """Return the schema of the node's op."""
        return schema_of(node.op_type, self.opset(node) or 1, node.domain)

    def is_op(self, node: ir.Node, domain: str) -> bool:
        """Return True for an op of the domain, False for a function of the model that
        has its name.
        """
        if node.domain != domain or node.overload:
            return False
        return not self._functions or node.op_identifier() not in self._functions

    def attribute(self, node: ir.Node, name: str) -> Any:
        """Return the value as written, or the default, as int, float, str or tuple.

        None if there is neither, or it is a tensor, a graph, or what the caller of a function says.
        """
        written = node.attributes.data.get(name)
        return self.default(node, name) if written is None else _python_value(written)

    def default(self, node: ir.Node, name: str) -> Any:
        """Return the value of an attribute that is not written."""
        found = _schema_default(node.op_type, self.opset(node) or 1, node.domain, name)
        if found is None and not node.domain:
            return _implied_default(node, name, self.types)
        return found

    def has_only_defaults(self, node: ir.Node, besides: object) -> bool:
        """Return True if every attribute of the node not in ``besides`` has its default value."""
        for name, written in node.attributes.data.items():
            if name in besides:  # type: ignore[operator]
                continue
            value = _python_value(written)
            if value is None or not identical(value, self.default(node, name)):
                return False
        return True

    def is_number(self, value: ir.Value, number: float) -> bool:
        """Return True for a constant with one element that is exactly the number."""
        if not self.known.is_constant(value):
            return False
        array = self.known.array(value)
        return array is not None and array.size == 1 and is_exactly(array, number)

    def same(self, one: ir.Value, other: ir.Value) -> bool:
        """Return True for the same value, or two small constants of the same dtype,
        shape and bits.
        """
        if one is other:
            return True
        if not (self.known.is_constant(one) and self.known.is_constant(other)):
            return False
        left, right = self.known.array(one), self.known.array(other)
        if left is None or right is None or left.shape != right.shape or left.dtype != right.dtype:
            return False
        if self.types.of(one).dtype != self.types.of(other).dtype:
            return False
        if left.dtype.kind == "O":
            return bool((left == right).all())
        return np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()


_PLAIN = frozenset(
    (
        *(ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING),
        *(ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS),
    )
)


def _python_value(attribute: ir.Attr) -> Any:
    if attribute.is_ref() or attribute.type not in _PLAIN:
        return None
    value = attribute.value
    return value if isinstance(value, (int, float, str)) else tuple(value)


@functools.lru_cache(maxsize=4096)
def _schema_default(op_type: str, opset: int, domain: str, name: str) -> Any:
    schema = schema_of(op_type, opset, domain)
    declared = None if schema is None else schema.attributes.get(name)
    if declared is None or not declared.default_value.name:
        return None
    return _python_value(ir.serde.deserialize_attribute(declared.default_value))


_NUMBERS = (bool, int, float)


def identical(left: Any, right: Any) -> bool:
    """Equal numbers, texts or tuples of them; 0.0 and -0.0 differ, unless a NumPy scalar is one."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(identical, left, right))
    if left != right:
        return False
    if left == 0 and type(left) in _NUMBERS and type(right) in _NUMBERS:
        return math.copysign(1, left) == math.copysign(1, right)
    return True


_CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv")
_POOLS = ("MaxPool", "AveragePool", "LpPool")


def _implied_default(node: ir.Node, name: str, types: SymbolicAnalysis) -> tuple[int, ...] | None:
    """Return a default that the op's text defines but its schema does not hold; None if
    not known.
    """
    operand = node.inputs[0] if node.inputs else None
    rank = None if operand is None else types.of(operand).rank
    if node.op_type == "Transpose" and name == "perm" and rank is not None:
        return tuple(reversed(range(rank)))
    if node.op_type not in (*_CONVOLUTIONS, *_POOLS):
        return None
    if name == "kernel_shape":
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        sizes = (None if weight is None else types.of(weight).shape) or ()
        kernel = tuple(size for size in sizes[2:] if isinstance(size, int))
        is_known = node.op_type in _CONVOLUTIONS[:2] and len(kernel) == len(sizes) - 2 > 0
        return kernel if is_known else None
    written = node.attributes.get("kernel_shape")
    spatial = (rank or 2) - 2
    if written is not None and not written.is_ref():
        spatial = len(written.value)
    if name in ("strides", "dilations"):
        return (1,) * spatial or None
    if name == "pads" or (name == "output_padding" and node.op_type == "ConvTranspose"):
        return (0,) * (2 * spatial if name == "pads" else spatial) or None
    return None


# -------------------------------------------------------------------- what functions of rules see


class Matched:
    """A value, and the node that makes it.

    A function that asks for what is not known ends there, and the rule does not match.
    """

    __slots__ = ("facts", "value")

    def __init__(self, value: ir.Value, facts: Facts) -> None:
        self.value = value
        self.facts = facts
        """What is known of the whole model."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Matched) and self.value is other.value

    def __hash__(self) -> int:
        return hash(self.value)

    # ---------------------------------------------------------------- the value

    @property
    def dtype(self) -> ir.DataType:
        """The dtype (equal to its ONNX number)."""
        return _known(self.facts.types.of(self.value).dtype)

    @property
    def is_float(self) -> bool:
        """Whether the dtype is a floating-point one."""
        return self.dtype.is_floating_point()

    @property
    def is_integer(self) -> bool:
        """Whether the dtype is an integer one, signed or not (bool is none)."""
        return self.dtype.is_integer()

    @property
    def shape(self) -> Shape:
        """The shape: a tuple of int, with a symbol for a size that is not known.

        A symbol equals itself only; to compute with it or to ask which is larger ends the match.
        """
        return _known(self.facts.types.of(self.value).shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, if every size is a number."""
        return _known(self.facts.types.of(self.value).static_shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return _known(self.facts.types.of(self.value).rank)

    def extent(self, axis: int) -> int | None:
        """Return the size of an axis, or None if it is not known."""
        shape = self.facts.types.of(self.value).shape
        size = None if shape is None else shape[axis]
        return size if isinstance(size, int) else None

    def sizes_of(self, axes: Iterable[int]) -> tuple[int, ...]:
        """Return the sizes of some axes, if they are numbers."""
        return tuple(_known(self.extent(axis)) for axis in axes)

    @property
    def has_one_element(self) -> bool:
        """Whether it has exactly one element, whatever its rank."""
        shape = self.shape
        if all(size == 1 for size in shape):
            return True
        return _known(False if any(type(d) is int and d != 1 for d in shape) else None)

    @property
    def has_elements(self) -> bool:
        """Whether it certainly has at least one element in every run."""
        shape = self.facts.types.of(self.value).shape
        return shape is not None and all(map(self.facts.types.algebra.is_positive, shape))

    def same_shape(self, other: Matched) -> bool:
        """Return whether both have the same shape in every run.

        Not known where a symbolic size decides: the rule does not match then, while ``x.shape ==
        y.shape`` is False unless the sizes are certainly equal.
        """
        if self.value is other.value:
            return True
        own, others = self.shape, other.shape
        return own == others or _known(False if differ(own, others) else None)

    def broadcasts_to(self, other: Matched) -> bool:
        """Return whether broadcasting both gives the other's shape: its rank and sizes stay.

        Not known where a symbolic size decides.
        """
        small = self.shape
        if self.value is other.value or small == ():
            return True
        large = other.shape
        if len(small) > len(large):
            return False
        open_sizes = [
            (a, b)
            for a, b in zip(reversed(small), reversed(large), strict=False)
            if a != 1 and a != b
        ]
        if any(type(a) is type(b) is int for a, b in open_sizes):
            return False
        return _known(None if open_sizes else True)

    @property
    def is_constant(self) -> bool:
        """Whether it is a compile-time constant, large or small."""
        return self.facts.known.is_constant(self.value)

    @property
    def is_runtime_constant(self) -> bool:
        """Whether it changes between settings of the model's runtime constants only."""
        return self.facts.constness.of(self.value) is Constness.RUNTIME

    @property
    def is_fixed(self) -> bool:
        """Whether it is a compile-time or a runtime constant: the same over many runs."""
        return self.is_constant or self.is_runtime_constant

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The elements of a small constant, read-only."""
        return _known(self.facts.known.array(self.value))

    @property
    def ints(self) -> tuple[int, ...]:
        """The elements of a small constant of integers: axes, sizes, bounds."""
        array = self.array
        if array.dtype.kind not in "iu":
            raise NotKnown
        return tuple(int(v) for v in array.ravel())

    @property
    def sizes_in(self) -> Shape:
        """The elements of a short list of integers, with a symbol for one that is not known."""
        return tuple(_known(self.facts.types.of(self.value).objects).ravel())

    @property
    def number(self) -> Any:
        """The one element of a constant, a NumPy scalar of its dtype."""
        array = self.array
        if array.size != 1 or not (self.is_integer or self.is_float):
            raise NotKnown
        return array.reshape(())[()]

    @property
    def is_single_use(self) -> bool:
        """Whether one node input reads it, and it is no output of the graph."""
        return len(uses(self.value)) == 1 and not self.value.is_graph_output()

    @property
    def is_graph_output(self) -> bool:
        """Whether it is an output of its graph."""
        return self.value.is_graph_output()

    @property
    def users(self) -> list[Matched]:
        """The nodes that read it, each as its first output."""
        nodes = dict.fromkeys(use.node for use in uses(self.value))
        return [Matched(node.outputs[0], self.facts) for node in nodes]

    # ---------------------------------------------------------------- its node

    @property
    def node(self) -> ir.Node:
        """The node that makes it."""
        return _known(self.value.producer())

    @property
    def op_type(self) -> str:
        """The type of the node."""
        return self.node.op_type

    def is_made_by(self, *op_types: str) -> bool:
        """Return whether a node of one of these types of ONNX's own ops makes the value."""
        node = self.value.producer()
        return node is not None and not node.domain and node.op_type in op_types

    @property
    def inputs(self) -> list[Matched | None]:
        """The inputs of the node; None for one that is omitted."""
        return [None if v is None else Matched(v, self.facts) for v in self.node.inputs]

    @property
    def has_one_output(self) -> bool:
        """Whether the node gives this result and no other."""
        return sum(bool(v.name) for v in self.node.outputs) == 1

    def attribute(self, name: str) -> Any:
        """Return an attribute of the node, or its default: int, float, str or tuple of them.

        None if there is neither, or it is a tensor, a graph, or what the caller of a function says.
        A float is the decimal that was written: 0.1, not the float32 next to it.
        """
        return plain_number(self.facts.attribute(self.node, name))

    @property
    def written_axes(self) -> tuple[int, ...]:
        """The axes that the node names, in an attribute or input called ``axes`` or ``axis``.

        They are as they are written. To name none is not known: what it means depends on the op and
        on its version.
        """
        for name in ("axes", "axis"):
            found = self.attribute(name)
            if found is not None:
                return _known((found,) if isinstance(found, int) else found or None)
        schema = self.facts.schema(self.node)
        names = [] if schema is None else [formal.name for formal in schema.inputs]
        for name, given in zip(names, self.inputs, strict=False):
            if name in ("axes", "axis") and given is not None:
                return _known(given.ints or None)
        raise NotKnown

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that the node names, whatever the opset: counted from the front, in order.

        Those of Unsqueeze are axes of its result, all others those of the first operand.
        """
        node = self.node
        counted = node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0]
        rank = None if counted is None else self.facts.types.of(counted).rank
        return axes_from_front(self.written_axes, rank)


def differ(left: Shape | None, right: Shape | None) -> bool:
    """Return whether two shapes certainly differ; None is a shape that is not known."""
    if left is None or right is None:
        return False
    return len(left) != len(right) or any(
        type(a) is type(b) is int and a != b for a, b in zip(left, right, strict=True)
    )


def plain_number(value: Any) -> Any:
    """Return a float attribute as it was written: 0.1 for what float32 makes of it."""
    return float(str(np.float32(value))) if type(value) is float else value


_HIGHEST_RANK = 64
"""No tensor has more axes: what counts them needs no more room."""


def axis_from_front(axis: int, rank: int | None) -> int:
    """Return an axis counted from the front.

    Raises:
        NotKnown: there is none such, or it is counted from the end and the rank is not known.
    """
    if rank is None:
        return _known(axis if 0 <= axis < _HIGHEST_RANK else None)
    return _known(axis % rank if -rank <= axis < rank else None)


def axes_from_front(axes: Iterable[int], rank: int | None) -> tuple[int, ...]:
    """Return the axes counted from the front, in order.

    Raises:
        NotKnown: as for `axis_from_front`, or an axis is named twice.
    """
    found = [axis_from_front(axis, rank) for axis in axes]
    return _known(tuple(sorted(found)) if len(set(found)) == len(found) else None)


def _known(found: _T | None) -> _T:
    if found is None:
        raise NotKnown
    return found
