"""Tables that rows are taken from: what is done to the rows is done to the table."""

from __future__ import annotations

import math
from typing import Any

from onnxfold.rules.shapes import RESHAPING, axis_of

from onnxfold.rewrite import (
    attributes,
    computed,
    constant,
    constants,
    is_constant,
    op,
    result,
    rule,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.terms import Term

x, i, zs = values("x i *zs")
c = constants("c")
a, p = attributes("a p")

# -------------------------------------------------------------------- tables

_taken = op.Gather(x, i, axis=a)


def _table_axes(match: Match) -> tuple[tuple[int, ...], int] | None:
    """How to transpose a table, and along which axis to gather, instead of transposing after."""
    rank, indices = match.rank(x), match.rank(i)
    if rank is None or indices is None:
        return None
    axis = axis_of(match[a], rank)
    if axis is None or sorted(match[p]) != list(range(rank + indices - 1)):
        return None
    if not indices:
        others = [k + (k >= axis) for k in match[p]]
        return (axis, *others), 0
    perm: list[int] = []
    for place, k in enumerate(match[p]):
        if not axis <= k < axis + indices:
            perm.append(k if k < axis else k - indices + 1)
        elif k == axis:
            if tuple(match[p][place : place + indices]) != tuple(range(k, k + indices)):
                return None
            perm.append(axis)
    return tuple(perm), perm.index(axis)


def _of_table(k: int) -> Term:
    def part(match: Match) -> Any:
        found = _table_axes(match)
        return None if found is None else found[k]

    return computed(part)


_SMALL = 4096
"""Elements of a table that may be stored twice, or moved when the model runs."""


def _is_own_table(match: Match) -> bool:
    """A stored table that nobody else reads, or a small one: its moved copy costs nothing."""
    table = match[x]
    maker, array = table.producer(), match.array(x)
    if not is_constant(x).holds(match) or (maker is not None and maker.op_type != "Constant"):
        return False
    return bool(single_use(x).holds(match)) or (array is not None and array.size <= _SMALL)


transpose_of_gathered = rule(
    op.Transpose(_taken, perm=p)
    >> op.Gather(op.Transpose(x, perm=_of_table(0)), i, axis=_of_table(1)),
    where=single_use(_taken) & _is_own_table,
    on_constants=True,
    doc="The table is transposed instead of what is taken from it.",
)


def _table_shapes(match: Match) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """The shapes of table and indices, and the axis, that make Gather give the result's shape."""
    table, indices, wanted = (match.static_shape(v) for v in (x, c, result))
    if table is None or indices is None or wanted is None or 0 in (*table, *indices):
        return None
    axis = axis_of(match[a], len(table))
    if axis is None:
        return None
    sizes = [math.prod(part) for part in (table[:axis], indices)]
    ends = []
    place = 0
    for size in sizes:
        found = math.prod(wanted[place : (end := place)])
        while found < size and end < len(wanted):
            found *= wanted[end]
            end += 1
        if found != size:
            return None
        ends.append(end)
        place = end
    first, last = ends
    shape = (*wanted[:first], table[axis], *wanted[last:])
    return shape, wanted[first:last], first


def _of_shapes(k: int) -> Any:
    def part(match: Match) -> Any:
        found = _table_shapes(match)
        return None if found is None else found[k]

    return computed(part)


_taken_at = op.Gather(x, c, axis=a)

shape_of_gathered = rule(
    op.any_of(*RESHAPING)(_taken_at, *zs)
    >> op.Gather(
        op.Reshape(x, constant(_of_shapes(0))),
        op.Reshape(c, constant(_of_shapes(1))),
        axis=_of_shapes(2),
    ),
    where=single_use(_taken_at) & _is_own_table,
    opset=(5, None),
    on_constants=True,
    doc="Table and indices have the shape instead of what is taken.",
)
