"""Sizes for the symbolic dimensions of a model's inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from onnxfold.errors import UsageError

UNNAMED = 2  # size of a dimension that has no name
_IMAGE_SIDES = (32, 64)  # pixels: what ordinary vision models can halve five times


def symbols_of(inputs: Iterable[ir.Value]) -> list[str]:
    """Names of the symbolic dimensions, in order of appearance; an expression gives its symbols."""
    names: dict[str, None] = {}
    for value in inputs:
        for dim in value.shape if value.shape is not None else ():
            for name in _symbols(dim):
                names.setdefault(name)
    return list(names)


def distinct_sizes(names: Iterable[str], seed: int) -> dict[str, int]:
    """Small sizes, one for every name, other ones with another seed.

    Distinct sizes notice a dimension that was frozen or taken for another one.
    "total" is past + current length, as exporters of decoders name them.
    """
    sizes = {
        name: _IMAGE_SIDES[(index + seed) % 2] if _is_image_side(name) else 2 + index + seed
        for index, name in enumerate(names)
    }
    return _with_totals(sizes)


def check_names(sizes: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse sizes of dimensions that there are not.

    Raises:
        UsageError: There is one.
    """
    for name in sorted(sizes.keys() - set(known)):
        there = f"there are {', '.join(known)}" if known else "none has a name"
        raise UsageError(f"no input has a dimension {name!r}; {there}")


def equal_sizes(names: Iterable[str], size: int) -> dict[str, int]:
    """The same size for every name."""
    return dict.fromkeys(names, size)


def concrete(
    shape: ir.Shape | None, sizes: Mapping[str, int], unnamed: int = UNNAMED
) -> tuple[int, ...]:
    """The shape with every symbolic dimension filled in; a shape that is unknown is a vector.

    Args:
        shape: The shape.
        sizes: Of all symbols in it.
        unnamed: Size of a dimension without a name.
    """
    if shape is None:
        return (unnamed,)
    return tuple(_size(dim, sizes, unnamed) for dim in shape)


def _size(dim: int | ir.SymbolicDim, sizes: Mapping[str, int], unnamed: int) -> int:
    if isinstance(dim, int):
        return dim if dim >= 0 else unnamed
    if dim.value is None:
        return unnamed
    if dim.value in sizes:
        return sizes[dim.value]
    size = dim.evaluate(sizes)
    return size if isinstance(size, int) and size >= 0 else unnamed


def _symbols(dim: int | ir.SymbolicDim) -> list[str]:
    """A name that is no expression ("batch size", "?") is its own symbol."""
    if isinstance(dim, int) or dim.value is None:
        return []
    try:
        return sorted(dim.free_symbols())
    except ValueError:
        return [dim.value]


def _is_image_side(name: str) -> bool:
    return name.lower() in {"height", "width", "h", "w"} or name.lower().endswith(
        ("_height", "_width")
    )


def _with_totals(sizes: dict[str, int]) -> dict[str, int]:
    past = next((name for name in sizes if "past" in name.lower()), None)
    current = next(
        (n for n in sizes if "seq" in n.lower() and not _is_total(n) and "past" not in n.lower()),
        None,
    )
    if past is None or current is None:
        return sizes
    total = sizes[past] + sizes[current]
    return {name: total if _is_total(name) else size for name, size in sizes.items()}


def _is_total(name: str) -> bool:
    return "total" in name.lower()
