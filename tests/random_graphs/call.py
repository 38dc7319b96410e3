"""One op to be added: what is given of it, and who fills in the rest.

``Call(b, "Gemm", given={1: CONST}, attributes={"transB": 1}).make()`` adds a Gemm whose second
operand is constant. Filling in is done by the function registered for the op (``@fills``), or from
the op's schema.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import defs

from .builder import Builder, Dim, Refused, Value
from .values import ALL, COMMON, FLOATS, INTS, Array, dtype_of, elem_of

FILLERS: dict[str, Callable[[Call], list[Value]]] = {}


def fills(*op_types: str) -> Callable[[Any], Any]:
    """Register a function that makes calls of these ops."""

    def register(function: Any) -> Any:
        for op_type in op_types:
            FILLERS[op_type] = function
        return function

    return register


@dataclass(frozen=True)
class Want:
    """What an operand must be: any constant, one of that element only, or nothing."""

    constant: bool = False
    fill: float | None = None
    single: bool = False
    omitted: bool = False


ANY = Want()
CONST = Want(constant=True)
OMITTED = Want(omitted=True)
FLOAT_VALUES = (0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 0.01, 0.2, 1e-5, 3.0)


class Call:
    """An op in the making."""

    def __init__(
        self,
        b: Builder,
        op_type: str,
        given: dict[int, Value | Want] | None = None,
        attributes: dict[str, Any] | None = None,
        free: bool = True,
        domain: str = "",
        outputs: int | None = None,
        most: int | None = None,
    ) -> None:
        self.b = b
        self.op_type = op_type
        self.given = given or {}
        self.attributes = dict(attributes or {})
        self.free = free
        """Whether attributes that are not given may have another value than their default."""
        self.domain = domain
        self.outputs = outputs
        self.most = most
        """How many inputs there may be; None for any number."""

    @functools.cached_property
    def schema(self) -> defs.OpSchema:
        try:
            version = self.b.opset if not self.domain else 1
            return defs.get_schema(self.op_type, version, self.domain)
        except defs.SchemaError as error:
            raise Refused(f"no {self.op_type} at opset {self.b.opset}") from error

    def make(self) -> list[Value]:
        """Add the node."""
        if self.schema.deprecated:
            raise Refused("deprecated")
        filler = FILLERS.get(self.op_type, by_schema) if not self.domain else by_schema
        return filler(self)

    # ------------------------------------------------------------ operands

    def allows(self, index: int) -> list[int]:
        """The element types that the schema allows for an input."""
        inputs = self.schema.inputs
        formal = inputs[min(index, len(inputs) - 1)]
        return [e for e in (elem_of(t) for t in sorted(formal.types)) if e in ALL]

    def has(self, index: int, share: float = 0.5) -> bool:
        """Whether an optional input is there."""
        wanted = self.given.get(index)
        if wanted is not None:
            return not (isinstance(wanted, Want) and wanted.omitted)
        if self.most is not None and index >= self.most:
            return False
        return self.b.chance(share)

    def operand(
        self,
        index: int,
        elems: Sequence[int] | None = None,
        rank: tuple[int, int] | int | None = None,
        where: Callable[[Value], bool] | None = None,
        dims: Callable[[], list[Dim]] | None = None,
        fresh: float | None = None,
    ) -> Value:
        """An operand of any shape of that rank."""
        wanted = self.given.get(index)
        if isinstance(wanted, Value):
            return wanted
        allowed = self.allows(index)
        elems = [e for e in (elems or COMMON) if e in allowed] or allowed
        if wanted is not None:
            low, high = (0, 4) if rank is None else (rank, rank) if isinstance(rank, int) else rank
            some = (
                dims()
                if dims
                else [(d[0],) * len(d) for d in self.b.some_dims(self.b.number(low, high))]
            )
            return self.fixed(index, self.b.choose(elems), some)
        return self.b.pick(elems, rank, where=where, dims=dims, fresh=fresh)

    def fixed(
        self,
        index: int,
        elem: int,
        dims: Sequence[Any],
        make: Callable[[tuple[int, ...]], Array] | None = None,
        constant: bool | None = None,
    ) -> Value:
        """An operand of these dims."""
        b = self.b
        wanted = self.given.get(index)
        if isinstance(wanted, Value):
            return wanted
        full = [(d,) * len(b.feeds) if isinstance(d, (int, np.integer)) else d for d in dims]
        if wanted is not None and wanted.constant:
            full = [(d[0],) * len(d) for d in full]
            if wanted.fill is not None:
                number = wanted.fill
                if wanted.single:
                    full = [b.dim(1)] * min(len(full), b.number(0, 2))

                return b.leaf(elem, full, lambda s: _full(s, number, elem), constant=True)
            if make is None and elem != T.STRING and b.chance(0.35):
                number = b.choose([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 6.0])
                return b.leaf(elem, full, lambda s: _full(s, number, elem), constant=True)
            return b.leaf(elem, full, make, constant=True)
        if make is None and constant is None and b.chance(0.3):
            like = [
                v
                for v in b.scope.visible()
                if v.kind == "tensor" and v.elem == elem and v.rank == len(full) and v.dims == full
            ]
            if like:
                return b.choose(like)
        if constant is None and make is not None:
            # numbers that must fit (axes, shapes) are mostly constant
            constant = b.chance(0.85) or None
        if b.scope.in_function:
            full, constant = [(d[0],) * len(d) for d in full], True
        return b.leaf(elem, full, make, constant=constant)

    def ints(self, index: int, numbers: Sequence[Any], elem: int | None = None) -> Value:
        """A list of integers: axes, a shape, bounds."""
        if elem is None:
            allowed = self.allows(index)
            elem = T.INT64 if T.INT64 in allowed and self.b.chance(0.85) else allowed[0]
        array = np.array(list(numbers), dtype_of(elem))
        return self.fixed(index, elem, [len(array)], lambda shape: np.resize(array, shape))

    def pair(self, first: Value, index: int, fresh: float = 0.5) -> Value:
        """Another operand that broadcasts with the first."""
        b = self.b
        wanted = self.given.get(index)
        if isinstance(wanted, Value):
            return wanted
        if wanted is None:
            return b.broadcast(first, fresh=fresh)
        fixed = [d if len(set(d)) == 1 else b.dim(1) for d in first.dims]
        if b.chance(0.4):
            fixed = fixed[b.number(0, len(fixed)) :]
        if b.chance(0.3):
            fixed = [b.dim(1) if b.chance(0.5) else d for d in fixed]
        return self.fixed(index, first.elem, fixed)

    # ------------------------------------------------------------ attributes

    def attribute(self, name: str, values: Sequence[Any], share: float = 0.6) -> Any:
        """An attribute that is given, or one of the values, or None for its default."""
        if name in self.attributes:
            return self.attributes[name]
        if name not in self.schema.attributes:
            return None
        if not self.free:
            return None
        if not self.b.chance(share):
            return None
        value = self.b.choose(list(values))
        self.attributes[name] = value
        return value

    def add(
        self, inputs: Sequence[Value | None], outputs: int | Sequence[bool] = 1, **more: Any
    ) -> list[Value]:
        """Add the node with the attributes that were given or chosen."""
        b = self.b
        attributes = {k: v for k, v in {**more, **self.attributes}.items() if v is not None}
        trimmed = list(inputs)
        while trimmed and trimmed[-1] is None:
            trimmed.pop()
        if self.outputs is not None:
            outputs = self.outputs
        references = {}
        if b.scope.kind == "function" and not self.domain:
            for name, value in attributes.items():
                known = self.schema.attributes.get(name)
                if known is None or isinstance(value, onnx.TensorProto) or not b.chance(0.4):
                    continue
                concrete = onnx.helper.make_attribute(name, value)
                formal = f"{name}_{len(b.scope.references)}"
                b.scope.references[formal] = concrete
                references[name] = onnx.AttributeProto(
                    name=name, ref_attr_name=formal, type=concrete.type
                )
        made = b.node(
            self.op_type, trimmed, outputs, domain=self.domain, references=references, **attributes
        )
        self.attributes = attributes
        return made


def _full(shape: tuple[int, ...], number: float, elem: int) -> Array:
    if elem == T.STRING:
        raise Refused("no number")
    with np.errstate(all="ignore"):
        return np.full(shape, number).astype(dtype_of(elem))


# -------------------------------------------------------------------- by schema

AXIS_NAMES = ("axis", "batch_axis", "time_axis", "split_axis")


def number_of_outputs(call: Call) -> list[bool]:
    """Required outputs, and optional ones now and then."""
    present = []
    for formal in call.schema.outputs:
        if formal.option == defs.OpSchema.FormalParameterOption.Optional:
            present.append(call.b.chance(0.4))
        else:
            present.append(True)
    while present and not present[-1]:
        present.pop()
    return present


def by_schema(call: Call) -> list[Value]:
    """Inputs and attributes of the types that the schema allows."""
    b, schema = call.b, call.schema
    bound: dict[str, int] = {}
    inputs: list[Value | None] = []
    first: Value | None = None
    optional = defs.OpSchema.FormalParameterOption.Optional
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    formals = list(schema.inputs)
    for k, value in sorted(call.given.items()):
        if isinstance(value, Value) and formals:
            bound.setdefault(formals[min(k, len(formals) - 1)].type_str, value.elem)
            first = first if first is not None else value
    count = len(formals)
    if formals and formals[-1].option == variadic:
        count = max([len(formals) - 1 + b.number(1, 3), *(k + 1 for k in call.given)])
        if call.most is not None:
            count = min(count, call.most)
    for k in range(count):
        formal = formals[min(k, len(formals) - 1)]
        if formal.option == optional and not call.has(k, 0.4):
            inputs.append(None)
            continue
        given = call.given.get(k)
        if isinstance(given, Value):
            value = given
        else:
            allowed = call.allows(k)
            if not allowed:
                raise Refused("no tensor")
            elems = (
                [bound[formal.type_str]]
                if formal.type_str in bound
                else [e for e in COMMON if e in allowed] or allowed
            )
            if b.chance(0.05) and formal.type_str not in bound:
                elems = allowed
            if given is not None:
                elem = bound.get(formal.type_str) or (
                    first.elem if first is not None and first.elem in allowed else b.choose(elems)
                )
                value = (
                    call.pair(first, k)
                    if first is not None and first.elem == elem
                    else (
                        call.fixed(k, elem, [(d[0],) * len(d) for d in b.some_dims(b.number(0, 3))])
                    )
                )
            elif first is None:
                value = b.pick(elems)
            elif b.chance(0.85):
                value = b.broadcast(first, b.choose(elems))
            else:
                value = b.pick(elems)
        bound.setdefault(formal.type_str, value.elem)
        first = first if first is not None else value
        inputs.append(value)
    fill_attributes(call, first)
    return call.add(inputs, number_of_outputs(call))


def fill_attributes(call: Call, first: Value | None) -> None:
    """Choose attributes that are not given: all that are required, some of the others."""
    b = call.b
    rank = first.rank if first is not None and first.kind == "tensor" else 0
    for name, formal in sorted(call.schema.attributes.items()):
        if name in call.attributes:
            continue
        if not formal.required and not (call.free and b.chance(0.5)):
            continue
        value = random_attribute(b, call.op_type, name, formal.type, rank)
        if value is None:
            if formal.required:
                raise Refused(f"no value for {name}")
            continue
        call.attributes[name] = value


STRINGS: dict[tuple[str, str], list[str]] = {
    ("*", "mode"): ["constant", "reflect", "edge", "linear", "nearest"],
    ("BitShift", "direction"): ["LEFT", "RIGHT"],
    ("Gelu", "approximate"): ["none", "tanh"],
    ("*", "reduction"): ["none", "sum", "mean", "add", "mul", "min", "max"],
    ("*", "auto_pad"): ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"],
}


def random_attribute(b: Builder, op_type: str, name: str, kind: Any, rank: int) -> Any:
    """A value for an attribute by its type and name; None if there is no saying."""
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
    """Some axes, each once."""
    count = b.number(0 if b.chance(0.15) else min(1, rank), rank)
    axes = [int(a) for a in b.rng.permutation(rank)[:count]]
    if b.chance(0.6):
        axes.sort()
    return [a - rank if negative and b.chance(0.3) else a for a in axes]


__all__ = ["ANY", "CONST", "Call", "FLOATS", "INTS", "OMITTED", "Want", "fills"]
