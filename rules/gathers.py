"""Tables that rows are taken from: what is done to the rows is done to the table."""

from __future__ import annotations

import math

from onnxfold.rules.shapes import RESHAPING

from onnxfold.rewrite import (
    Matched,
    attributes,
    axis_from_front,
    constant,
    constants,
    given,
    op,
    rule,
    single_use,
    values,
)

x, zs = values("x *zs")
c = constants("c")
a = attributes("a")

# -------------------------------------------------------------------- tables


_SMALL = 4096
"""Elements of a table that may be stored twice, or moved when the model runs."""


@given
def _is_own_table(x: Matched) -> bool:
    """A stored table that nobody else reads, or a small one: its moved copy costs nothing."""
    maker = x.value.producer()
    if not x.is_constant or (maker is not None and maker.op_type != "Constant"):
        return False
    return x.is_single_use or x.array.size <= _SMALL


@given
def _table_shapes(
    x: Matched, c: Matched, a: int, result: Matched
) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
    """The shapes of table and indices, and the axis, that make Gather give the result's shape."""
    table, indices, wanted = x.sizes, c.sizes, result.sizes
    if 0 in (*table, *indices):
        return None
    axis = axis_from_front(a, len(table))
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


_taken_at = op.Gather(x, c, axis=a)

shape_of_gathered = rule(
    op.any_of(*RESHAPING)(_taken_at, *zs)
    >> op.Gather(
        op.Reshape(x, constant(_table_shapes[0])),
        op.Reshape(c, constant(_table_shapes[1])),
        axis=_table_shapes[2],
    ),
    where=single_use(_taken_at) & _is_own_table,
    opset=(5, None),
    on_constants=True,
    doc="Table and indices have the shape instead of what is taken.",
)
