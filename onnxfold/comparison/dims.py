"""Sizes for the dynamic dimensions of a model's inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from onnxfold.errors import UsageError, suggestion

_UNKNOWN = 2  # size of a dimension that no size is given for
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


def check_names(sizes: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse sizes of dimensions that there are not.

    Raises:
        UsageError: There is one.
    """
    for name in sorted(sizes.keys() - set(known)):
        raise UsageError(f"no input has a dimension {name!r}{suggestion(name, known)}")


def concrete(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input with sizes for its dynamic dimensions; if it is unknown, of a
    vector.

    Args:
        value: The input.
        sizes: Sizes by the names of `symbols_of`; a dimension that is not there is 2.
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
    if dim.value in sizes:
        return sizes[dim.value]
    size = dim.evaluate(sizes)
    return size if isinstance(size, int) and size >= 0 else _UNKNOWN


def _symbols(dim: int | ir.SymbolicDim, name: str) -> list[str]:
    """Return the symbols of a dimension; a name such as "batch size" is its own symbol."""
    if isinstance(dim, int) and dim >= 0:
        return []
    if isinstance(dim, int) or dim.value is None:
        return [name]
    try:
        return sorted(dim.free_symbols())
    except ValueError:
        return [dim.value]
