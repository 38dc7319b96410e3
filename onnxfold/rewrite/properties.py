"""Properties of matched values, as terms that conditions compare and replacements compute with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.rewrite.terms import UNKNOWN, Call, Term

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match
    from onnxfold.rewrite.patterns import Expression


class _Of(Term):
    """A property of one matched value."""

    def __init__(self, name: str, read: Callable[[Match, ir.Value], Any], x: Any) -> None:
        self._name = name
        self._read = read
        self._x = x

    def evaluate(self, match: Match) -> Any:
        value = match[self._x]
        if value is None:
            return UNKNOWN
        found = self._read(match, value)
        return UNKNOWN if found is None else found

    def variables(self) -> Iterator[object]:
        yield self._x

    def __repr__(self) -> str:
        return f"{self._name}({self._x!r})"


def dtype_of(x: Expression) -> Term:
    """The dtype, an ``ir.DataType`` (equal to its ONNX number)."""
    return _Of("dtype_of", lambda m, v: m.facts.types.of(v).dtype, x)


def rank_of(x: Expression) -> Term:
    """The number of axes."""
    return _Of("rank_of", lambda m, v: m.facts.types.of(v).rank, x)


def shape_of(x: Expression) -> Term:
    """The shape: a tuple of int, with a symbol for a size that is not known."""
    return _Of("shape_of", lambda m, v: m.facts.types.of(v).shape, x)


def value_of(c: Expression) -> Term:
    """The elements of a small constant, a NumPy array."""
    return _Of("value_of", lambda m, v: m.facts.known.array(v), c)


def ints_of(c: Expression) -> Term:
    """The elements of a small constant (axes, a shape), a tuple of int."""
    return _Of("ints_of", _ints, c)


def size_of(x: Expression) -> Term:
    """The number of elements."""
    return Call(_product, (shape_of(x),))


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _ints(match: Match, value: ir.Value) -> tuple[int, ...] | None:
    array = match.facts.known.array(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return tuple(int(v) for v in array.ravel())
