"""Names and sizes of the dynamic dimensions of a model's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxfold.ir.graphs import dim_with, name_of, symbols_in
from onnxfold.support.errors import UsageError, suggestion

_UNKNOWN = 2  # size of a dimension that no size is given for
_MOST_DISTINCT = 64  # with thousands of dimensions, distinct sizes would not be small
_LENGTHS = ("total", "past", "seq")  # as names of dimensions of decoders contain them
_SIDES = ("height", "width", "h", "w")
_IMAGE_SIDES = (32, 64)  # pixels: what ordinary vision models can halve five times


def symbols_of(inputs: Iterable[ir.Value]) -> list[str]:
    """Names of the dynamic dimensions, in order of appearance; an expression gives its symbols.

    Dimension 2 of the input `x`, if it has no name, is "x[2]".
    """
    axes = (names for value in inputs for names in axes_of(value))
    return list(dict.fromkeys(name for names in axes for name in names))


def axes_of(value: ir.Value) -> list[list[str]]:
    """For each axis of an input the names of the dynamic dimensions that it depends on."""
    found: list[list[str]] = []
    for axis, dim in enumerate(value.shape or ()):
        if isinstance(dim, ir.SymbolicDim) and name_of(dim):
            found.append(sorted(symbols_in(dim)))
        else:
            is_fixed = isinstance(dim, int) and dim >= 0
            found.append([] if is_fixed else [f"{value.name}[{axis}]"])
    return found


def distinct_sizes(names: Iterable[str], seed: int) -> dict[str, int]:
    """Small sizes, one for every name (up to 64 names), other ones with another seed.

    Distinct sizes notice a dimension that was frozen or taken for another one.
    "total" is past + current length, as exporters of decoders name them.
    """
    sizes = {name: 2 + index % _MOST_DISTINCT + seed for index, name in enumerate(names)}
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
    """Return the sizes of dynamic dimensions: those given, else 1 for a batch, and ``size``."""
    return {name: given.get(name, 1 if is_batch(name) else size) for name in names}


def is_batch(name: str) -> bool:
    """Return whether the name of a dynamic dimension is that of a batch.

    A dimension without a name is taken for a batch if it is the first of its input.
    """
    return "batch" in name.lower() or name.endswith("[0]")


def check_names(sizes: Mapping[str, object], inputs: Sequence[ir.Value]) -> None:
    """Raise a UsageError for names that are neither dimensions nor their expressions."""
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
    if isinstance(dim, int) or (name_of(dim) is None and dim.value not in sizes):
        return sizes.get(name, _UNKNOWN)
    size = dim_with(dim, sizes)
    return size if isinstance(size, int) else _UNKNOWN
