"""Sizes for the dynamic dimensions of a model's inputs, and the integers that inputs may hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.errors import UsageError, suggestion
from onnxfold.graphs import dim_with, symbols_in
from onnxfold.ops import Trait, ops

_UNKNOWN = 2  # size of a dimension that no size is given for
_LENGTHS = ("total", "past", "seq")  # as names of dimensions of decoders contain them
_SIDES = ("height", "width", "h", "w")
_IMAGE_SIDES = (32, 64)  # pixels: what ordinary vision models can halve five times

# Ops whose results hold elements of their first operand, or of all, moved or converted.
_CARRIERS = {*ops(Trait.MOVES), "Cast", "CastLike", "Clip", "GatherND", "Identity"}
_VARIADIC_CARRIERS = {"Concat", "Max", "Min", "Where"}
_INDEXED = {"Gather", "GatherElements", "ScatterElements", "ScatterND", "GatherND"}
_ORDERED = {"Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_LARGEST = 1 << 31  # of what an input is set to because it is compared with it


def symbols_of(inputs: Iterable[ir.Value]) -> list[str]:
    """Names of the dynamic dimensions, in order of appearance; an expression gives its symbols.

    Dimension 2 of the input `x`, if it has no name, is "x[2]".
    """
    axes = (names for value in inputs for names in axes_of(value))
    return list(dict.fromkeys(name for names in axes for name in names))


def axes_of(value: ir.Value) -> list[list[str]]:
    """For each axis of an input the names of the dynamic dimensions that it depends on."""
    shape = value.shape if value.shape is not None else ()
    return [_symbols(dim, f"{value.name}[{axis}]") for axis, dim in enumerate(shape)]


def distinct_sizes(names: Iterable[str], seed: int) -> dict[str, int]:
    """Small sizes, one for every name, other ones with another seed.

    Distinct sizes notice a dimension that was frozen or taken for another one.
    "total" is past + current length, as exporters of decoders name them.
    """
    sizes = {name: 2 + index + seed for index, name in enumerate(names)}
    for index, name in enumerate(sizes):
        if name.lower().rpartition("_")[2] in _SIDES:
            sizes[name] = _IMAGE_SIDES[(index + seed) % 2]
    kinds = {name: next((k for k in _LENGTHS if k in name.lower()), "") for name in sizes}
    first = {kind: sizes[name] for name, kind in reversed(kinds.items())}
    if "past" in first and "seq" in first:
        totals = (name for name in sizes if kinds[name] == "total")
        sizes.update(dict.fromkeys(totals, first["past"] + first["seq"]))
    return sizes


def usual_sizes(names: Iterable[str], given: Mapping[str, int], size: int) -> dict[str, int]:
    """Return the sizes of dynamic dimensions: those given, else 1 for a batch, and ``size``.

    A dimension without a name is taken for a batch if it is the first of its input.
    """
    return {
        n: given.get(n, 1 if "batch" in n.lower() or n.endswith("[0]") else size) for n in names
    }


def check_names(sizes: Mapping[str, object], inputs: Sequence[ir.Value]) -> None:
    """Refuse sizes of dimensions that inputs do not have; the text of an expression is a name, too.

    Raises:
        UsageError: There is one.
    """
    dims = (dim for value in inputs for dim in value.shape or ())
    texts = [d.value for d in dims if isinstance(d, ir.SymbolicDim) and d.value is not None]
    known = {*symbols_of(inputs), *texts}
    for name in sorted(sizes.keys() - known):
        raise UsageError(f"no input has a dimension {name!r}{suggestion(name, known)}")


def concrete(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input with sizes for its dynamic dimensions, by the names of
    `symbols_of`, or 2; if it is unknown, of a vector.
    """
    if value.shape is None:
        return (_UNKNOWN,)
    return tuple(
        size_of(dim, sizes, f"{value.name}[{axis}]") for axis, dim in enumerate(value.shape)
    )


def size_of(dim: int | ir.SymbolicDim, sizes: Mapping[str, int], name: str = "") -> int:
    """Return the size of a dimension, which is called so if it has no name of its own."""
    if isinstance(dim, int) and dim >= 0:
        return dim
    if isinstance(dim, int) or dim.value is None:
        return sizes.get(name, _UNKNOWN)
    size = dim_with(dim, sizes)
    return size if isinstance(size, int) else _UNKNOWN


def _symbols(dim: int | ir.SymbolicDim, name: str) -> list[str]:
    """Return the symbols of a dimension, which is called so if it has no name of its own."""
    if isinstance(dim, int) and dim >= 0:
        return []
    return [name] if isinstance(dim, int) or dim.value is None else sorted(symbols_in(dim))


@dataclass
class IntegerUse:
    """What the graph tells of the elements of an integer input.

    Attributes:
        least: The least value that is no negative index.
        bounds: Exclusive upper bounds, each a size of a table and what the input is less than
            that size by.
        compared: Values on either side of what they are compared with, in order of the graph.
    """

    least: int = 0
    bounds: list[tuple[int | ir.SymbolicDim, int]] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)

    def limit(self, sizes: Mapping[str, int]) -> int | None:
        """Return the exclusive upper bound at these sizes of dimensions, None where no
        table tells.
        """
        limits = [size_of(size, sizes) - offset for size, offset in self.bounds]
        return max(self.least + 1, min(limits)) if limits else None


def integer_use(types: SymbolicAnalysis, value: ir.Value) -> IntegerUse:
    """Return what is done with the elements of an integer input.

    Follows the input through ops that only move elements or add a constant, into model-local
    functions too, to the tables that are indexed by it and the constants that it is compared with.
    One analysis of the model serves all inputs.
    """
    found = IntegerUse()
    seen = {value}
    work = [(value, 0)]  # with what was added on the way
    while work:
        current, offset = work.pop()
        for user, position in current.uses():
            size = _table_size(types, user, position)
            if size is not None:
                found.bounds.append((size, offset))
                found.least = max(found.least, -offset)
            for number in _compared_with(user, position):
                if number - offset not in found.compared:
                    found.compared.append(number - offset)
            added = _added(user, position)
            following = carried(types.model, user, position) if added is None else user.outputs
            for output in following:
                if output not in seen:
                    seen.add(output)
                    work.append((output, offset + (added or 0)))
    return found


def _table_size(
    types: SymbolicAnalysis, node: ir.Node, position: int
) -> int | ir.SymbolicDim | None:
    """Size of the axis that input number `position` of the node indexes, where it is known."""
    if node.op_type == "OneHot" and position == 0:
        depth = constant_array(node.inputs[1])
        return None if depth is None or depth.size != 1 else int(depth.reshape(-1)[0])
    if node.op_type not in _INDEXED or position != 1:
        return None
    table = node.inputs[0]
    if table is None:
        return None
    shape = types.of(table).static_shape or table.shape
    if not shape:
        return None
    axis = 0 if node.op_type.endswith("ND") else node.attributes.get_int("axis", 0)
    if not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return None if isinstance(size, ir.SymbolicDim) and size.value is None else size


def _compared_with(node: ir.Node, position: int) -> Iterator[int]:
    """Yield the values that decide a comparison with a constant: equal to it, or on both sides of
    it.
    """
    if node.op_type != "Equal" and node.op_type not in _ORDERED:
        return
    constant = constant_array(node.inputs[1 - position])
    if constant is None or constant.size != 1 or constant.dtype.kind not in "iuf":
        return
    number = constant.reshape(-1)[0]
    if abs(number) < _LARGEST:
        yield from (int(number),) if node.op_type == "Equal" else (int(number) + 1, int(number) - 1)


def _added(node: ir.Node, position: int) -> int | None:
    """Return the largest constant that the node adds to the input; None if it does
    something else.
    """
    if node.op_type not in ("Add", "Sub") or (node.op_type == "Sub" and position != 0):
        return None
    constant = constant_array(node.inputs[1 - position])
    if constant is None or constant.size == 0 or constant.dtype.kind not in "iu":
        return None
    return -int(constant.min()) if node.op_type == "Sub" else int(constant.max())


def carried(model: ir.Model, node: ir.Node, position: int) -> list[ir.Value]:
    """Return the values that hold the same elements after the node."""
    function = model.functions.get(node.op_identifier())
    if function is not None:
        return [function.inputs[position]] if position < len(function.inputs) else []
    is_carrier = node.op_type in _CARRIERS and position == 0
    return list(node.outputs) if is_carrier or node.op_type in _VARIADIC_CARRIERS else []


def constant_array(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the elements of a constant, None for another value."""
    constant = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if constant is None else constant.numpy()
