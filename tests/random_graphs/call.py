"""Add an op and choose its operands and attributes.

``Call(b, "Gemm").make()`` adds a Gemm. A function that is registered for the op with ``@fills``
chooses the operands and attributes. For an op without such a function, `by_schema` chooses them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import defs

from .builder import Builder
from .scopes import Dim, Refused, Value
from .values import ALL, COMMON, Array, dtype_of, elem_of

FILLERS: dict[str, Callable[[Call], list[Value]]] = {}


def fills(*op_types: str) -> Callable[[Any], Any]:
    """Return a decorator that registers a function as the one that adds these ops."""

    def register(function: Any) -> Any:
        FILLERS.update(dict.fromkeys(op_types, function))
        return function

    return register


FLOAT_VALUES = (0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 0.01, 0.2, 1e-5, 3.0)


class Call:
    """An op to be added to a graph.

    Args:
        b: Builder of the graph.
        op_type: The op.
        first: The first operand, or None for a random one.
        attributes: Attributes with fixed values.
    """

    def __init__(
        self,
        b: Builder,
        op_type: str,
        first: Value | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        self.b = b
        self.op_type = op_type
        self.first = first
        self.attributes = dict(attributes or {})

    @functools.cached_property
    def schema(self) -> defs.OpSchema:
        return self.b.schema(self.op_type)

    def make(self) -> list[Value]:
        if self.schema.deprecated:
            raise Refused("deprecated")
        return FILLERS.get(self.op_type, by_schema)(self)

    def allows(self, index: int) -> list[int]:
        """Return the element types of `ALL` that the schema allows for an operand."""
        inputs = self.schema.inputs
        formal = inputs[min(index, len(inputs) - 1)]
        return [e for e in (elem_of(t) for t in sorted(formal.types)) if e in ALL]

    def operand(
        self,
        index: int,
        elems: Sequence[int] | None = None,
        rank: tuple[int, int] | int | None = None,
        where: Callable[[Value], bool] | None = None,
        dims: Callable[[], list[Dim]] | None = None,
        fresh: float | None = None,
    ) -> Value:
        if index == 0 and self.first is not None:
            return self.first
        allowed = self.allows(index)
        elems = [e for e in (elems or COMMON) if e in allowed] or allowed
        return self.b.pick(elems, rank, where=where, dims=dims, fresh=fresh)

    def fixed(
        self,
        index: int,
        elem: int,
        dims: Sequence[Any],
        make: Callable[[tuple[int, ...]], Array] | None = None,
        constant: bool | None = None,
    ) -> Value:
        """Return an operand with the given element type and dims.

        The operand is a visible value or a new leaf. If the call has a fixed first operand, return
        this operand for the index 0. In a function, symbolic dims have the sizes of the first feed.
        """
        b = self.b
        if index == 0 and self.first is not None:
            return self.first
        full = [(d,) * len(b.feeds) if isinstance(d, (int, np.integer)) else d for d in dims]
        if make is None and constant is None and b.chance(0.3):
            like = b.known(elem, lambda v: v.dims == full)
            if like:
                return b.choose(like)
        if constant is None and make is not None:
            # operands such as axes and shapes are mostly constant
            constant = b.chance(0.85) or None
        if b.scope.in_function:
            full, constant = [(d[0],) * len(d) for d in full], True
        return b.leaf(elem, full, make, constant=constant)

    def ints(self, index: int, numbers: Sequence[Any], elem: int | None = None) -> Value:
        if elem is None:
            allowed = self.allows(index)
            elem = T.INT64 if T.INT64 in allowed and self.b.chance(0.85) else allowed[0]
        array = np.array(list(numbers), dtype_of(elem))
        return self.fixed(index, elem, [len(array)], lambda shape: np.resize(array, shape))

    def number(self, index: int, number: float, elem: int = T.INT64) -> Value:
        return self.fixed(index, elem, [], lambda s: np.full(s, number, dtype_of(elem)))

    def attribute(self, name: str, values: Sequence[Any], share: float = 0.6) -> Any:
        """Return the value of an attribute, or None if the attribute has its default.

        An attribute without a fixed value is set to one of ``values`` with the probability
        ``share``. The default applies otherwise, and if the schema has no such attribute.
        """
        if name in self.attributes:
            return self.attributes[name]
        if name not in self.schema.attributes or not self.b.chance(share):
            return None
        self.attributes[name] = self.b.choose(list(values))
        return self.attributes[name]

    def axis(self, x: Value) -> int | None:
        """Return the attribute ``axis`` of an op on ``x``, or None if it has its default."""
        return self.attribute("axis", list(range(-x.rank, x.rank)))

    def add(self, inputs: Sequence[Value | None], outputs: int | Sequence[bool] = 1) -> list[Value]:
        """Add the node with the fixed and the chosen attributes, and return its outputs.

        In a function, some attributes refer to attributes of the function.

        Args:
            inputs: The operands. None stands for an omitted operand.
            outputs: The number of outputs, or whether each output is present.

        Raises:
            Refused: The builder refuses the node.
        """
        b = self.b
        attributes = {k: v for k, v in self.attributes.items() if v is not None}
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        references = {}
        if b.scope.kind == "function":
            for name, value in attributes.items():
                if isinstance(value, onnx.TensorProto) or not b.chance(0.4):
                    continue
                concrete = onnx.helper.make_attribute(name, value)
                formal = f"{name}_{len(b.scope.references)}"
                b.scope.references[formal] = concrete
                references[name] = onnx.AttributeProto(
                    name=name, ref_attr_name=formal, type=concrete.type
                )
        made = b.node(self.op_type, trimmed, outputs, references=references, **attributes)
        self.attributes = attributes
        return made


AXIS_NAMES = ("axis", "batch_axis", "time_axis", "split_axis")


def by_schema(call: Call) -> list[Value]:
    """Add an op with operands and attributes of the types that its schema allows.

    Raises:
        Refused: An operand or a required attribute has no supported type, or the builder refuses
            the node.
    """
    b = call.b
    formals = list(call.schema.inputs)
    option = defs.OpSchema.FormalParameterOption
    bound: dict[str, int] = {}
    inputs: list[Value | None] = []
    first = call.first
    count = len(formals)
    if formals and formals[-1].option == option.Variadic:
        count += b.number(0, 2)
    for k in range(count):
        formal = formals[min(k, len(formals) - 1)]
        if formal.option == option.Optional and not b.chance(0.4):
            inputs.append(None)
            continue
        allowed = call.allows(k)
        if not allowed:
            raise Refused("no tensor")
        elems = [e for e in COMMON if e in allowed] or allowed
        if formal.type_str in bound:
            elems = [bound[formal.type_str]]
        elif b.chance(0.05):
            elems = allowed
        if k == 0 and first is not None:
            value = first
        elif first is not None and b.chance(0.85):
            value = b.broadcast(first, b.choose(elems))
        else:
            value = b.pick(elems)
        bound.setdefault(formal.type_str, value.elem)
        first = first if first is not None else value
        inputs.append(value)
    fill_attributes(call, first)
    present = [f.option != option.Optional or b.chance(0.4) for f in call.schema.outputs]
    while present and not present[-1]:
        present.pop()
    return call.add(inputs, present)


def fill_attributes(call: Call, first: Value | None) -> None:
    """Set the missing attributes at random: all required ones and some of the others.

    Raises:
        Refused: No value is known for a required attribute.
    """
    rank = first.rank if first is not None and first.kind == "tensor" else 0
    for name, formal in sorted(call.schema.attributes.items()):
        if name in call.attributes or not (formal.required or call.b.chance(0.5)):
            continue
        value = random_attribute(call.b, call.op_type, name, formal.type, rank)
        if value is not None:
            call.attributes[name] = value
        elif formal.required:
            raise Refused(f"no value for {name}")


STRINGS: dict[tuple[str, str], list[str]] = {
    ("*", "mode"): ["constant", "reflect", "edge", "linear", "nearest"],
    ("BitShift", "direction"): ["LEFT", "RIGHT"],
    ("Gelu", "approximate"): ["none", "tanh"],
    ("*", "reduction"): ["none", "sum", "mean", "add", "mul", "min", "max"],
    ("*", "auto_pad"): ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"],
}


def random_attribute(b: Builder, op_type: str, name: str, kind: Any, rank: int) -> Any:
    """Return a random value that suits an attribute's type and name, or None if none is known."""
    types = defs.OpSchema.AttrType
    if kind == types.INT:
        if name in AXIS_NAMES:
            return b.number(-rank, max(rank - 1, 0))
        if name in ("to", "dtype", "output_dtype", "output_datatype", "stash_type"):
            return int(b.choose(COMMON))
        return b.number(0, 1) if b.chance(0.8) else b.number(-2, 3)
    if kind == types.FLOAT:
        return float(b.choose(FLOAT_VALUES))
    if kind == types.INTS:
        if name == "axes":
            return some_axes(b, rank)
        return [b.number(0, 2) for _ in range(b.number(1, 3))]
    if kind == types.STRING:
        known = STRINGS.get((op_type, name)) or STRINGS.get(("*", name))
        return b.choose(known) if known else None
    return None


def some_axes(b: Builder, rank: int, negative: bool = True) -> list[int]:
    count = b.number(0 if b.chance(0.15) else min(1, rank), rank)
    axes = [int(a) for a in b.rng.permutation(rank)[:count]]
    if b.chance(0.6):
        axes.sort()
    return [a - rank if negative and b.chance(0.3) else a for a in axes]
