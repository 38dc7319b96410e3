"""Names and sizes of the dynamic dimensions of model inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxfold.ir.graphs import dim_with, name_of, symbols_in
from onnxfold.support.errors import UsageError, suggestion

_DEFAULT_SIZE = 2  # of a dynamic dimension without a size
_MAX_DISTINCT = 64  # distinct sizes of thousands of dimensions would not be small
_LENGTHS = ("total", "past", "seq")  # substrings of dimension names that decoders use
_IMAGE_AXES = ("height", "width", "h", "w")
_IMAGE_SIZES = (32, 64)  # pixels; vision models usually halve the size up to five times


def symbols_of(inputs: Iterable[ir.Value]) -> list[str]:
    """Return the names of the dynamic dimensions of inputs, each once, in order of appearance.

    For an expression, these are the names in the expression. If dimension 2 of the input `x` has no
    name, its name is "x[2]".
    """
    axes = (names for value in inputs for names in axes_of(value))
    return list(dict.fromkeys(name for names in axes for name in names))


def axes_of(value: ir.Value) -> list[list[str]]:
    """Return, for each axis of an input, the names of the dynamic dimensions that determine it.

    The result is empty if the rank is unknown.
    """
    axes: list[list[str]] = []
    for axis, dim in enumerate(value.shape or ()):
        if isinstance(dim, ir.SymbolicDim) and name_of(dim):
            axes.append(sorted(symbols_in(dim)))
        else:
            is_fixed = isinstance(dim, int) and dim >= 0
            axes.append([] if is_fixed else [f"{value.name}[{axis}]"])
    return axes


def distinct_sizes(names: Iterable[str], seed: int) -> dict[str, int]:
    """Return small sizes by name, which depend on the seed. Up to 64 sizes are distinct.

    Distinct sizes reveal a dimension that was frozen or confused with another one. There are two
    exceptions. The height and the width of images are 32 or 64. If there are a "past" and a "seq"
    length, each "total" length is their sum, because exporters of decoders use these names.
    """
    sizes = {name: 2 + index % _MAX_DISTINCT + seed for index, name in enumerate(names)}
    for index, name in enumerate(sizes):
        if name.lower().rpartition("_")[2] in _IMAGE_AXES:
            sizes[name] = _IMAGE_SIZES[(index + seed) % 2]
    kinds = {name: next((k for k in _LENGTHS if k in name.lower()), "") for name in sizes}
    first = {kind: sizes[name] for name, kind in reversed(kinds.items())}
    if "past" in first and "seq" in first:
        totals = (name for name in sizes if kinds[name] == "total")
        sizes.update(dict.fromkeys(totals, first["past"] + first["seq"]))
    return sizes


def usual_sizes(names: Iterable[str], fixed: Mapping[str, int], size: int) -> dict[str, int]:
    """Return sizes of dynamic dimensions: fixed sizes, 1 for batches, and ``size`` for others."""
    return {name: fixed.get(name, 1 if is_batch(name) else size) for name in names}


def is_batch(name: str) -> bool:
    """Return whether a name is that of a batch dimension.

    The first dimension of an input also counts as a batch dimension if this dimension has no name.
    """
    return "batch" in name.lower() or name.endswith("[0]")


def check_names(sizes: Mapping[str, object], inputs: Sequence[ir.Value]) -> None:
    """Check that all names are dynamic dimensions or expressions of inputs.

    Raises:
        UsageError: A name is neither.
    """
    dims = (dim for value in inputs for dim in value.shape or ())
    texts = [d.value for d in dims if isinstance(d, ir.SymbolicDim) and d.value is not None]
    valid_names = {*symbols_of(inputs), *texts}
    for name in sorted(sizes.keys() - valid_names):
        raise UsageError(f"no input has a dimension {name!r}{suggestion(name, valid_names)}")


def concrete(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an input for sizes of its dynamic dimensions.

    Args:
        value: The input. An input of unknown rank counts as a vector of size 2.
        sizes: Sizes by the names of `symbols_of`. Dynamic dimensions without a size here have size
            2.
    """
    if value.shape is None:
        return (_DEFAULT_SIZE,)
    return tuple(
        size_of(dim, sizes, f"{value.name}[{axis}]") for axis, dim in enumerate(value.shape)
    )


def size_of(dim: int | ir.SymbolicDim, sizes: Mapping[str, int], name: str = "") -> int:
    """Return the size of a dimension, or 2 if ``sizes`` does not determine the size.

    Args:
        dim: The dimension.
        sizes: Sizes by name.
        name: The key in ``sizes`` for a dimension without a name.
    """
    if isinstance(dim, int) and dim >= 0:
        return dim
    if isinstance(dim, int) or (name_of(dim) is None and dim.value not in sizes):
        return sizes.get(name, _DEFAULT_SIZE)
    size = dim_with(dim, sizes)
    return size if isinstance(size, int) else _DEFAULT_SIZE
