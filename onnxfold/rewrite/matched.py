"""Properties of values that a rule records when it is created, and evaluates for each match."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.elements import is_exactly
from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir.onnx_ir_private import uses
from onnxfold.ir.symbolic import NotKnown
from onnxfold.ir.symbolic.fact import Shape, differ
from onnxfold.ops import Op, Trait, definition_of
from onnxfold.rewrite.conditions import Recorded, Term, plain_number

_ELEMENTS = "the elements of {}"
_AXES = "the axes of the node of {}"
_MAX_NODES_TO_CONSTANT = 4
"""Maximum number of nodes on the path from a value to a constant that excludes -0.0."""
_MAX_RANK = 64
"""The assumed upper bound for a rank that is unknown."""

_T = TypeVar("_T")
_R = TypeVar("_R")
_P = ParamSpec("_P")


class _Property(Generic[_T, _R]):
    """A descriptor that returns the property of a matched value, or the term for it of a symbol."""

    def __init__(
        self,
        function: Callable[..., Any],
        of_value: Callable[[Matched], _T],
        of_symbol: Callable[[Value], _R],
    ) -> None:
        self.__doc__ = function.__doc__
        self._name = function.__name__
        self._of_value = of_value
        self._of_symbol = of_symbol

    @overload
    def __get__(self, instance: Matched, owner: object) -> _T: ...
    @overload
    def __get__(self, instance: Value, owner: object) -> _R: ...

    def __get__(self, instance: Any, owner: object) -> Any:
        if type(instance) is Matched:
            return self._of_value(instance)
        # the next access finds the term in the symbol
        return instance.__dict__.setdefault(self._name, self._of_symbol(instance))


def recorded_property(function: Callable[[Matched], _T]) -> _Property[_T, Term]:
    """Decorate a property of matched values. For a symbol, the property is a term."""
    return _Property(function, function, functools.partial(Term, function))


def recorded_method(
    function: Callable[Concatenate[Matched, _P], _T],
) -> _Property[Callable[_P, _T], Callable[..., Term]]:
    """Decorate a method of matched values. For a symbol, the method returns a term."""
    bound = functools.partial(functools.partial, function)
    return _Property(function, bound, functools.partial(functools.partial, Term, function))


class Value(Recorded):
    """A value of a model, and the node that produces it.

    In a rule, a value is a symbol whose properties are recorded. A condition that depends on an
    unknown property does not hold.
    """

    __slots__ = ()

    @recorded_property
    def dtype(self: Matched) -> ir.DataType:
        """The dtype. An ``ir.DataType`` is equal to the number of the dtype in ONNX."""
        return _known(self.facts.types.of(self.value).dtype, "the dtype of {}", self)

    @recorded_property
    def is_float(self: Matched) -> bool:
        """Whether the dtype is a floating-point dtype."""
        return self.dtype.is_floating_point()

    @recorded_property
    def is_integer(self: Matched) -> bool:
        """Whether the dtype is a signed or unsigned integer dtype. bool is not an integer dtype."""
        return self.dtype.is_integer()

    @recorded_property
    def shape(self: Matched) -> Shape:
        """The shape: a tuple of integers, with an expression for each size that is unknown.

        Sizes that are certainly equal have the same expression. A condition is unknown if it
        calculates with expressions, orders them, or depends on the equality of different ones.
        """
        return _known(self.facts.types.of(self.value).shape, "the shape of {}", self)

    @recorded_property
    def sizes(self: Matched) -> tuple[int, ...]:
        """The shape; unknown unless every size is a number."""
        static_shape = self.facts.types.of(self.value).static_shape
        return _known(static_shape, "a size in the shape of {}", self)

    @recorded_property
    def size(self: Matched) -> int:
        """The number of elements; unknown unless every size is a number."""
        return math.prod(self.sizes)

    @recorded_property
    def rank(self: Matched) -> int:
        """The number of axes."""
        return _known(self.facts.types.of(self.value).rank, "the rank of {}", self)

    @recorded_method
    def extent(self: Matched, axis: int) -> int | None:
        """Return the size of an axis, or None if the size is unknown."""
        shape = self.facts.types.of(self.value).shape
        size = None if shape is None else shape[axis]
        return size if isinstance(size, int) else None

    @recorded_method
    def sizes_of(self: Matched, axes: Iterable[int]) -> tuple[int, ...]:
        """Return the sizes of some axes; unknown unless all of them are numbers."""
        return tuple(
            _known(self.extent(axis), "the size of axis {} of {}", axis, self) for axis in axes
        )

    @recorded_property
    def has_one_element(self: Matched) -> bool:
        """Whether the value has exactly one element, regardless of its rank."""
        return _are_same(self.shape, (1,) * self.rank)

    @recorded_property
    def has_elements(self: Matched) -> bool:
        """Whether the value certainly has at least one element in every run."""
        shape = self.facts.types.of(self.value).shape
        return shape is not None and all(map(self.facts.types.algebra.is_positive, shape))

    @recorded_method
    def same_shape(self: Matched, other: Any) -> bool:
        """Return whether both values have the same shape in every run.

        The result is unknown if it depends on a symbolic size. By contrast, in a `computed`
        function, ``x.shape == y.shape`` is False unless the sizes are certainly equal.
        """
        return self.value is other.value or _are_same(self.shape, other.shape)

    @recorded_method
    def broadcasts_to(self: Matched, other: Any) -> bool:
        """Return whether broadcasting both values gives the shape of the other value.

        The result is unknown if it depends on a symbolic size.
        """
        shape = self.shape
        if self.value is other.value or shape == ():
            return True
        other_shape = other.shape
        if len(shape) > len(other_shape):
            return False
        last = other_shape[len(other_shape) - len(shape) :]
        broadcast = tuple(b if a == 1 else a for a, b in zip(shape, last, strict=True))
        return _are_same(broadcast, last)

    @recorded_method
    def is_broadcast_of(self: Matched, *others: Any) -> bool:
        """Return whether broadcasting the other values certainly gives the shape of this value."""
        shapes = [other.shape for other in others]
        return self.rank == max(map(len, shapes)) and all(
            {size, 1} == {1, *(shape[-k] for shape in shapes if len(shape) >= k)}
            for k, size in enumerate(reversed(self.shape), 1)
        )

    @recorded_method
    def sizes_for_reshape(self: Matched, before: Shape) -> tuple[int, ...]:
        """Return the second operand of a Reshape from ``before`` to the shape of this value.

        The result is unknown if no constant operand gives this shape in every run.
        """
        sizes = []
        for k, size in enumerate(self.shape):
            if isinstance(size, int) and size > 0:
                sizes.append(size)
            elif k < len(before) and size == before[k]:
                sizes.append(0)  # copies the size
            elif isinstance(size, int):
                raise NotKnown("no operand of a Reshape gives the shape of {}", self)
            else:
                sizes.append(-1)
        # a Reshape infers at most one size, and none if a copied size is 0 when the model runs
        is_ambiguous = sizes.count(-1) > 1 or {-1, 0}.issubset(sizes)
        if is_ambiguous:
            raise NotKnown("no operand of a Reshape gives the shape of {}", self)
        return tuple(sizes)

    @recorded_method
    def is_per_channel(self: Matched, other: Any, axis: int) -> bool:
        """Return whether the value has one number, or one number for each channel of another value.

        The result is unknown if a size of this value is symbolic.

        Args:
            other: The other operand of an op. The value is broadcast to the shape of ``other``.
            axis: The axis of the channels, counted from the front.
        """
        if self.rank > other.rank:
            return False
        sizes = (1,) * (other.rank - self.rank) + self.sizes
        # a single channel of the other value must not be broadcast to several
        is_vector = all(size == 1 for k, size in enumerate(sizes) if k != axis)
        return is_vector and sizes[axis] in (1, other.shape[axis])

    @recorded_property
    def last_two_swapped(self: Matched) -> tuple[int, ...]:
        """The permutation that swaps the last two axes; unknown if there are fewer axes."""
        rank = self.rank
        if rank < 2:
            raise NotKnown("{} has fewer than two axes", self)
        return (*range(rank - 2), rank - 1, rank - 2)

    @recorded_method
    def keeps_order(self: Matched, permutation: Iterable[int]) -> bool:
        """Return whether a permutation of the axes moves only axes of size 1.

        The result is unknown if ``permutation`` is not a permutation of the axes.
        """
        axes = tuple(permutation)
        shape = self.shape
        if sorted(axes) != list(range(len(shape))):
            raise NotKnown("{} is not a permutation of the axes of {}", axes, self)
        moved = [axis for axis in axes if shape[axis] != 1]
        return moved == sorted(moved)

    @recorded_property
    def is_constant(self: Matched) -> bool:
        """Whether the value is a compile-time constant."""
        return self.facts.constness.is_constant(self.value)

    @recorded_property
    def freed_bytes(self: Matched) -> int:
        """Bytes of the stored constants that are removed with the consumer of the value.

        The number is 0 if the value has several uses or is a graph output. It is unknown if the
        value is not constant, or if constant propagation does not fold the value, such as a
        dequantized weight.
        """
        tensor = self.facts.constness.tensor(self.value)
        if tensor is None and (self.node.domain or Trait.QUANTIZES in self.definition.traits):
            raise NotKnown("constant propagation does not fold {}", self)
        if tensor is not None:
            freed = int(tensor.nbytes)
        else:
            freed = sum(operand.freed_bytes for operand in self.inputs if operand is not None)
        return freed if self.is_single_use else 0

    @recorded_property
    def is_runtime_constant(self: Matched) -> bool:
        """Whether the value depends on runtime constants, and on no other inputs."""
        return self.facts.constness.of(self.value) is Constness.RUNTIME

    @recorded_property
    def is_fixed(self: Matched) -> bool:
        """Whether the value is a compile-time or a runtime constant, and so equal in many runs."""
        return self.is_constant or self.is_runtime_constant

    @recorded_property
    def array(self: Matched) -> np.ndarray[Any, Any]:
        """The elements of a small constant, read-only; unknown for any other value."""
        return _known(self.facts.constness.array(self.value), _ELEMENTS, self)

    @recorded_property
    def is_zeros(self: Matched) -> bool:
        """Whether all elements of a small constant are 0.0 or -0.0."""
        return not self.array.any()

    @recorded_property
    def has_zeros(self: Matched) -> bool:
        """Whether an element of a small constant is 0.0 or -0.0."""
        return not self.array.all()

    @recorded_property
    def is_finite(self: Matched) -> bool:
        """Whether no element of a constant is infinite or a NaN; False for an empty constant."""
        return _known(self.facts.constness.is_finite(self.value), _ELEMENTS, self)

    @recorded_property
    def is_positive_zeros(self: Matched) -> bool:
        """Whether all elements are certainly 0.0 (or the integer 0) in every run, for any shape."""
        pending = [self]
        seen: set[Matched] = set()
        while pending:
            current = pending.pop()
            if current in seen or current.facts.constness.all_equal(current.value, 0.0):
                continue
            seen.add(current)
            if current.is_made_by("ConstantOfShape"):
                fill = current.node.attributes.get("value")
                if fill is not None and (fill.is_ref() or not is_exactly(fill.value.numpy(), 0.0)):
                    return False
                continue
            inputs = current.inputs
            moved = [inputs[k] for k in current.definition.moved_inputs(len(inputs))]
            if not moved:
                return False
            pending.extend(each for each in moved if each is not None)
        return True

    @recorded_property
    def has_no_negative_zero(self: Matched) -> bool:
        """Whether certainly no element is -0.0.

        This is true for a small constant without -0.0, and for the result of moving or adding such
        a constant. A few nodes may be between the constant and the value.
        """
        return self._has_no_negative_zero(_MAX_NODES_TO_CONSTANT)

    @recorded_property
    def ints(self: Matched) -> tuple[int, ...]:
        """The elements of a small constant of integers, such as axes, sizes and bounds.

        They are unknown for other values.
        """
        array = self.array
        if array.dtype.kind not in "iu":
            raise NotKnown("the elements of {} are not integers", self)
        return tuple(int(v) for v in array.ravel())

    @recorded_property
    def sizes_in(self: Matched) -> Shape:
        """The elements of a small integer or boolean tensor, with expressions for unknown ones."""
        elements = self.facts.types.of(self.value).objects
        return tuple(_known(elements, "the integers in {}", self).ravel())

    @recorded_property
    def number(self: Matched) -> Any:
        """The number in a constant with one element, as a NumPy scalar; unknown for others."""
        array = self.array
        if array.size != 1 or not (self.is_integer or self.is_float):
            raise NotKnown("{} is not one number", self)
        return array.reshape(())[()]

    @recorded_property
    def is_single_use(self: Matched) -> bool:
        """Whether exactly one input of a node reads the value, and no graph output does."""
        return len(uses(self.value)) == 1 and not self.value.is_graph_output()

    @recorded_property
    def is_graph_output(self: Matched) -> bool:
        """Whether the value is an output of its graph."""
        return self.value.is_graph_output()

    @recorded_method
    def is_read_by(self: Matched, *op_types: str) -> bool:
        """Return whether a node of one of these op types reads the value."""
        return any(user.op_type in op_types for user in self.users)

    @recorded_method
    def is_only_read_by(self: Matched, op_type: str) -> bool:
        """Return whether all consumers have this op type and no other variable inputs.

        Each consumer must read the value as its first input. The other inputs must be omitted or
        compile-time constants. The result is False for a graph output.
        """
        return not self.is_graph_output and all(
            user.op_type == op_type
            and user.inputs[0] == self
            and all(each is None or each.is_constant for each in user.inputs[1:])
            for user in self.users
        )

    @recorded_property
    def op_type(self: Matched) -> str:
        """The op type of the node."""
        return self.node.op_type

    @recorded_method
    def is_made_by(self: Matched, *op_types: str) -> bool:
        """Return whether the value is the result of one of these ops of ONNX."""
        node = self.value.producer()
        return node is not None and not node.domain and node.op_type in op_types

    @recorded_property
    def has_one_output(self: Matched) -> bool:
        """Whether the node has exactly one output."""
        return sum(bool(v.name) for v in self.node.outputs) == 1

    @recorded_method
    def attribute(self: Matched, name: str, default: Any = None) -> Any:
        """Return the value or default of an attribute: an int, a float, a str, or a tuple of these.

        A float is the shortest decimal number: 0.1 instead of the nearest float32 number. The
        elements of a tuple are unchanged. Tensors, graphs and references to attributes of functions
        are unknown.

        Args:
            name: The name of the attribute.
            default: The result if the node does not have the attribute and ONNX has no default.
        """
        value = plain_number(self.facts.attribute(self.node, name))
        if value is None and name in self.node.attributes:
            raise NotKnown("the attribute {} of the node of {} is not known", name, self)
        return default if value is None else value

    @recorded_property
    def is_unpadded(self: Matched) -> bool:
        """Whether a convolution or pool has no padding."""
        auto_pad = self.attribute("auto_pad")
        pads = self.attribute("pads")
        return auto_pad in (None, "NOTSET", "VALID") and not any(pads or ())

    @recorded_property
    def is_position_dependent(self: Matched) -> bool:
        """Whether results depend on the position of an element on a supported CPU.

        onnxruntime's SIMD code compares the lower halves of int64 as signed numbers. Vector code
        and scalar code convert a float out of the range of an integer differently.
        """
        return self.definition.depends_on_position(NodeOfValue(self))

    @recorded_property
    def is_rounded_by_position(self: Matched) -> bool:
        """Whether last bits or signs of zeros depend on the position on a supported CPU.

        Scalar code computes the last elements if they do not fill a vector register. For functions
        of float64, scalar code uses another algorithm than vector code. On arm64, vector code
        computes Reciprocal from an estimate, and max(-0.0, 0.0) is 0.0 in vector code and -0.0 in
        scalar code.
        """
        return self.definition.rounds_by_position(NodeOfValue(self))

    @recorded_property
    def written_axes(self: Matched) -> tuple[int, ...]:
        """The axes as written in the attribute or input ``axes`` or ``axis`` of the node.

        An omitted attribute has its default. Other omitted axes and empty axes are unknown, because
        their meaning depends on the op and its version.
        """
        for name in ("axes", "axis"):
            written = self.attribute(name)
            if written is not None:
                axes = (written,) if isinstance(written, int) else written
                return _known(axes or None, _AXES, self)
        schema = self.facts.schema(self.node)
        names = [] if schema is None else [formal.name for formal in schema.inputs]
        for name, operand in zip(names, self.inputs, strict=False):
            if name in ("axes", "axis") and operand is not None:
                return _known(operand.ints or None, _AXES, self)
        raise NotKnown("the node of {} has no axes", self)

    @recorded_property
    def axes(self: Matched) -> tuple[int, ...]:
        """The axes of the node, counted from the front, in ascending order.

        They are unknown if `written_axes` are unknown, or if axes are repeated or do not exist. The
        axes of Unsqueeze are axes of its result. Those of other ops are axes of the first operand.
        """
        node = self.node
        tensor = node.outputs[0] if node.op_type == "Unsqueeze" else node.inputs[0]
        rank = None if tensor is None else self.facts.types.of(tensor).rank
        return axes_from_front(self.written_axes, rank)


class Matched(Value):
    """The value of a symbol in a match: the argument of `computed` functions.

    If a function reads an unknown property, the property raises NotKnown, and the rule does not
    match.
    """

    __slots__ = ("facts", "value")

    def __init__(self, value: ir.Value, facts: ModelFacts) -> None:
        self.value = value
        self.facts = facts
        """The facts of the model."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Matched) and self.value is other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value.name)

    @property
    def definition(self) -> Op:
        """The definition of the op of the node."""
        return definition_of(self.node)

    def _has_no_negative_zero(self, max_nodes: int) -> bool:
        array = self.facts.constness.array(self.value)
        if array is not None:
            number = array.astype(np.float64)
            return not bool((np.signbit(number) & (number == 0)).any())
        if not max_nodes or self.value.producer() is None or self.node.domain:
            return False
        inputs = self.inputs
        terms = [inputs[k] for k in self._terms if k < len(inputs)]
        return any(v is not None and v._has_no_negative_zero(max_nodes - 1) for v in terms)

    @property
    def _terms(self) -> Sequence[int]:
        """Indices of operands. The result has no -0.0 if one of these operands has none."""
        moved = self.definition.moved_inputs(len(self.node.inputs))
        return moved if len(moved) == 1 else self.definition.excludes_negative_zero

    @property
    def users(self) -> list[Matched]:
        """The nodes that read the value. Each node is represented by its first output."""
        nodes = dict.fromkeys(use.node for use in uses(self.value))
        return [Matched(node.outputs[0], self.facts) for node in nodes]

    @property
    def node(self) -> ir.Node:
        """The node that produces the value. If there is none, this raises NotKnown."""
        return _known(self.value.producer(), "the node of {}", self)

    @property
    def inputs(self) -> list[Matched | None]:
        """The inputs of the node; None for omitted inputs."""
        return [None if v is None else Matched(v, self.facts) for v in self.node.inputs]


class NodeOfValue:
    """The node of a matched value; it implements `onnxfold.ops.definition.NodeProperties`."""

    def __init__(self, value: Matched) -> None:
        self._value = value

    @property
    def dtype(self) -> ir.DataType:
        """The dtype of the result."""
        return self._value.dtype

    @property
    def _input(self) -> Matched:
        return _known(self._value.inputs[0], "the first input of the node of {}", self._value)

    @property
    def input_dtype(self) -> ir.DataType:
        """The dtype of the first operand."""
        return self._input.dtype

    def has_no_negative_zero(self, k: int) -> bool:
        """Return whether no element of an operand is -0.0."""
        operand = _known(self._value.inputs[k], "input {} of the node of {}", k, self._value)
        return operand.has_no_negative_zero

    @property
    def limits(self) -> list[float | None]:
        """The bounds of a Clip; None for a bound that is not a small constant.

        Omitted bounds are not in the list.
        """
        declared = [self.attribute(name) for name in ("min", "max")]
        limits: list[float | None] = [float(limit) for limit in declared if limit is not None]
        for limit in self._value.inputs[1:]:
            if limit is not None:
                array = limit.facts.constness.array(limit.value)
                limits.append(None if array is None else float(array.reshape(())))
        return limits

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, or its default, see `Value.attribute`."""
        return self._value.attribute(name, default)


def axes_from_front(axes: Iterable[int], rank: int | None) -> tuple[int, ...]:
    """Return the axes counted from the front, in ascending order.

    Raises:
        NotKnown: An axis does not exist or is repeated, or an axis is counted from the end and the
            rank is unknown.
    """
    axes = list(axes)
    lowest = -(rank or 0)
    end = _MAX_RANK if rank is None else rank
    from_front = {axis % end for axis in axes if lowest <= axis < end}
    if len(from_front) < len(axes):
        raise NotKnown("the axes {} are repeated, or they do not exist", axes)
    return tuple(sorted(from_front))


def _are_same(left: Shape, right: Shape) -> bool:
    """Return whether two shapes are equal.

    Raises:
        NotKnown: The result depends on a symbolic size.
    """
    if left == right:
        return True
    if differ(left, right):
        return False
    raise NotKnown("it depends on symbolic sizes whether {} and {} are equal", left, right)


def _known(value: _T | None, subject: str, *parts: object) -> _T:
    """Return a fact that is not None.

    Raises:
        NotKnown: The fact is None. The arguments of the exception are a format string for the
            subject, and the values for its fields.
    """
    if value is None:
        raise NotKnown(subject + " is not known", *parts)
    return value
