"""Movement of elements: reshapes, transposes, slices, joins and splits that meet.

What moves elements changes no bit, so most rules here hold at every level. The exceptions say why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.types import Dim, Shape
from onnxfold.rewrite import (
    UNKNOWN,
    anything,
    attributes,
    broadcasts_to,
    constant,
    constants,
    filled,
    ints_of,
    is_constant,
    op,
    optional,
    outputs,
    rank_of,
    result,
    rule,
    same_shape,
    shape_of,
    single_use,
    values,
)
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.terms import Call, Term

x, y, z, i, xs, ys, zs = values("x y z i *xs *ys *zs")
c, d, starts, ends, axes, steps = constants("c d starts ends axes steps")
starts2, ends2, axes2, steps2 = constants("starts2 ends2 axes2 steps2")
a, b, p, q, t = attributes("a b p q t")


# -------------------------------------------------------------------- terms and conditions


class _Computed(Term):
    def __init__(self, function: Callable[[Match], Any]) -> None:
        self._function = function

    def evaluate(self, match: Match) -> Any:
        found = self._function(match)
        return UNKNOWN if found is None else found

    def __repr__(self) -> str:
        return self._function.__name__.strip("_<>")


def computed(function: Callable[[Match], Any]) -> Term:
    """A term of a function of the match; where the function gives None there is no match."""
    return _Computed(function)


def symbolic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like ``lift``, but the function also gets shapes with symbols; None is unknown."""

    def call(*values: Any) -> Any:
        found = function(*values)
        return UNKNOWN if found is None else found

    return lambda *terms: Call(call, terms, symbolic=True)


def normal(axes: Sequence[int] | None, rank: int | None) -> tuple[int, ...] | None:
    """Axes counted from the front, in order; None if that takes a rank that is not known."""
    if axes is None or (rank is None and any(axis < 0 for axis in axes)):
        return None
    found = sorted({axis + (rank or 0) if axis < 0 else axis for axis in axes})
    return tuple(found) if len(found) == len(axes) else None


def axes_of(match: Match, node: ir.Node, rank: int | None) -> tuple[int, ...] | None:
    """The axes of a node, in its attribute or second input."""
    written = node.attributes.get("axes")
    if written is not None:
        return None if written.is_ref() else normal(written.value, rank)
    given = node.inputs[1] if len(node.inputs) > 1 else None
    array = None if given is None else match.array(given)
    return None if array is None else normal([int(axis) for axis in array.ravel()], rank)


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The shape that shapes broadcast to; None if a size that is not known could decide."""
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    dims: list[Dim] = []
    for k in range(1, max(len(shape) for shape in known) + 1):
        sizes = {shape[-k] for shape in known if len(shape) >= k} - {1}
        if len(sizes) > 1:
            return None
        dims.append(sizes.pop() if sizes else 1)
    return tuple(reversed(dims))


def target_shape(before: Shape | None, after: Shape | None) -> tuple[int, ...] | None:
    """What Reshape is told to make ``after`` of ``before``; None if it cannot be said."""
    if before is None or after is None:
        return None
    sizes: list[int] = []
    for k, size in enumerate(after):
        if isinstance(size, int) and size > 0:
            sizes.append(size)
        elif k < len(before) and size == before[k]:
            sizes.append(0)  # the size that it has
        else:
            sizes.append(-1 if not isinstance(size, int) else -2)
    # beside a -1 there must be no size that is 0 when the model runs
    if -2 in sizes or sizes.count(-1) > 1 or (-1 in sizes and 0 in sizes):
        return None
    return tuple(sizes)


def shape_through(before: Shape | None, between: Shape | None, sizes: Any) -> Any:
    """The sizes given to a Reshape of ``between``, given to a Reshape of ``before``."""
    kept = []
    for k, size in enumerate(sizes):
        if size == 0:
            same = between[k] if between is not None and k < len(between) else None
            if isinstance(same, int) and same > 0:
                size = same
            elif same is None or before is None or k >= len(before) or same != before[k]:
                return None
        kept.append(size)
    return tuple(kept)


def moves_only_ones(shape: Shape | None, perm: Sequence[int]) -> bool | None:
    """True if the axes that a transpose takes out of their order have the size 1."""
    if shape is None:
        return None
    order = [axis for axis in perm if shape[axis] != 1]
    return True if order == sorted(order) else None


def moved_axes(perm: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The permutation that does ``perm`` and then ``other``."""
    return tuple(perm[axis] for axis in other)


def new_shape(*operands: Any) -> Any:
    """The constant that makes a Reshape of ``operands[0]`` give the shape of the result."""
    return constant(symbolic(target_shape)(shape_of(operands[0]), shape_of(result)))


# -------------------------------------------------------------------- changes of shape

_one = op.any_of("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_other = op.any_of("Reshape", "Squeeze", "Unsqueeze", "Flatten")
_inner = _one(x, *ys)

shape_there_and_back = rule(
    _other(_inner, *zs) >> x,
    where=same_shape(x, result),
    benefit=2,
    doc="Two changes of shape, the second undoes the first.",
)

_squeeze, _unsqueeze = op("Squeeze"), op("Unsqueeze")


def _same_axes(match: Match) -> bool:
    """Both nodes have the same axes of the larger of the two ranks."""
    rank = match.rank(x)
    nodes = [match.node(_squeeze), match.node(_unsqueeze)]
    inner = next(n for n in nodes if n.inputs[0] is match[x])
    if rank is not None and inner is nodes[1]:
        (made,) = inner.outputs
        rank = match.rank(made)
    one, other = (axes_of(match, node, rank) for node in nodes)
    return one is not None and one == other


squeeze_of_unsqueeze = rule(
    _squeeze(_unsqueeze(x, *ys), *zs) >> x,
    where=_same_axes,
    benefit=1,
    doc="The axes that are added are taken away again.",
)

unsqueeze_of_squeeze = rule(
    _unsqueeze(_squeeze(x, *ys), *zs) >> x,
    where=_same_axes,
    benefit=1,
    doc="The axes that are taken away are added again.",
)


def _added_axes(rank: int | None, first: Any, second: Any) -> tuple[int, ...] | None:
    """The axes that two Unsqueezes add, as axes of the last result."""
    inner = None if rank is None else rank + len(first)
    one, other = normal(first, inner), normal(second, inner and inner + len(second))
    if one is None or other is None:
        return None
    room = max((*one, *other), default=0) + len(other) + 1
    free = [axis for axis in range(room) if axis not in other]
    return tuple(sorted((*other, *(free[axis] for axis in one))))


def _removed_axes(rank: int | None, first: Any, second: Any) -> tuple[int, ...] | None:
    """The axes that two Squeezes remove, as axes of their operand."""
    one = normal(first, rank)
    other = normal(second, None if rank is None else rank - len(first))
    if one is None or other is None:
        return None
    room = max((*one, *other), default=0) + len(one) + 1
    free = [axis for axis in range(room) if axis not in one]
    return tuple(sorted((*one, *(free[axis] for axis in other))))


def _rank_if_known(match: Match) -> Any:
    return (match.rank(x),)


_rank = computed(_rank_if_known)


@symbolic
def added_axes(rank: tuple[int | None], first: Any, second: Any) -> tuple[int, ...] | None:
    """The axes that two Unsqueezes add together."""
    return _added_axes(rank[0], first, second)


@symbolic
def removed_axes(rank: tuple[int | None], first: Any, second: Any) -> tuple[int, ...] | None:
    """The axes that two Squeezes remove together."""
    return _removed_axes(rank[0], first, second)


_unsqueezed, _unsqueezed_11 = op.Unsqueeze(x, c), op.Unsqueeze(x, axes=p)
_squeezed, _squeezed_11 = op.Squeeze(x, c), op.Squeeze(x, axes=p)

unsqueeze_of_unsqueeze = (
    rule(
        op.Unsqueeze(_unsqueezed, d)
        >> op.Unsqueeze(x, constant(added_axes(_rank, ints_of(c), ints_of(d)))),
        where=single_use(_unsqueezed),
        benefit=1,
        doc="Axes are added at once.",
    ),
    rule(
        op.Unsqueeze(_unsqueezed_11, axes=q) >> op.Unsqueeze(x, axes=added_axes(_rank, p, q)),
        where=single_use(_unsqueezed_11),
        opset=(1, 12),
        benefit=1,
        doc="Axes are added at once.",
    ),
)

squeeze_of_squeeze = (
    rule(
        op.Squeeze(_squeezed, d)
        >> op.Squeeze(x, constant(removed_axes(_rank, ints_of(c), ints_of(d)))),
        where=single_use(_squeezed),
        benefit=1,
        doc="Axes are taken away at once.",
    ),
    rule(
        op.Squeeze(_squeezed_11, axes=q) >> op.Squeeze(x, axes=removed_axes(_rank, p, q)),
        where=single_use(_squeezed_11),
        opset=(1, 12),
        benefit=1,
        doc="Axes are taken away at once.",
    ),
)

reshape_of_reshaped = rule(
    op.Reshape(_inner, c)
    >> op.Reshape(x, constant(symbolic(shape_through)(shape_of(x), shape_of(_inner), ints_of(c)))),
    where=(rank_of(x) >= 0) & (rank_of(_inner) >= 0),
    opset=(5, None),
    doc="A Reshape needs no other change of shape before it, if its zeros mean the same.",
)

reshape_without_zeros = rule(
    op.Reshape(_inner, c) >> op.Reshape(x, c),
    where=lambda m: bool((m.array(c) != 0).all()) if m.array(c) is not None else None,
    opset=(5, None),
    doc="A Reshape whose sizes do not refer to its operand's needs no other one before it.",
)

changes_of_shape = rule(
    _other(_inner, *zs) >> op.Reshape(x, new_shape(x)),
    where=single_use(_inner),
    opset=(5, None),
    benefit=-1,
    doc="Two changes of shape are one Reshape, if a constant can say to which shape.",
)

# -------------------------------------------------------------------- transposes of nothing

_transposed = op.Transpose(x, perm=p)

reshape_of_transposed_ones = rule(
    _other(_transposed, *zs) >> op.Reshape(x, new_shape(x)),
    where=symbolic(moves_only_ones)(shape_of(x), p) & single_use(_transposed),
    opset=(5, None),
    doc="A transpose that only moves axes of size 1 is part of the Reshape after it.",
)

transpose_of_reshaped_ones = rule(
    op.Transpose(_inner, perm=p) >> op.Reshape(x, new_shape(x)),
    where=symbolic(moves_only_ones)(shape_of(_inner), p) & single_use(_inner),
    opset=(5, None),
    doc="A transpose that only moves axes of size 1 is part of the Reshape before it.",
)

# -------------------------------------------------------------------- transposes that meet

EXACT_ANYWHERE = (
    *("Abs", "Cast", "Ceil", "Floor", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("LeakyRelu", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sign", "Sqrt"),
)
"""Element-wise ops whose results do not depend on an element's place."""

VECTORIZED = ("Erf", "Exp", "Gelu", "Sigmoid", "Tanh")
"""In float32 neither do these. Log, Sin, Cos, Softplus, Elu and others do on onnxruntime: the last
few elements, which fill no vector register, are computed by other code."""

BINARY = ("Add", "Div", "Mul", "Sub")

_unary = op.any_of(*EXACT_ANYWHERE, *VECTORIZED)
_binary = op.any_of(*BINARY)


def _depends_on_place(match: Match) -> bool:
    node = match.node(_unary)
    return node.op_type in VECTORIZED and match.dtype(x) != ir.DataType.FLOAT


def _undone(match: Match) -> bool:
    one, other = match[p], match[q]
    return len(one) == len(other) and moved_axes(one, other) == tuple(range(len(one)))


_composed = Call(moved_axes, (p, q))

transpose_through_unary = rule(
    op.Transpose(_unary(_transposed), perm=q) >> op.Transpose(_unary(x), perm=_composed),
    where=single_use(_transposed) | _undone,
    inexact=_depends_on_place,
    doc="Transposes on both sides of an element-wise op are one.",
)


def full_rank(shape: tuple[int, ...], perm: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape with axes of size 1 in front, up to the rank of the permutation."""
    missing = len(perm) - len(shape)
    return None if missing < 0 else (1,) * missing + shape


_spread = op.Transpose(op.Reshape(c, constant(symbolic(full_rank)(shape_of(c), q))), perm=q)

transpose_through_binary = (
    rule(
        op.Transpose(_binary(_transposed, c), perm=q)
        >> _binary(op.Transpose(x, perm=_composed), _spread),
        where=_undone,
        opset=(7, None),
        doc="The constant operand is transposed instead of what comes before and after.",
    ),
    rule(
        op.Transpose(_binary(c, _transposed), perm=q)
        >> _binary(_spread, op.Transpose(x, perm=_composed)),
        where=_undone,
        opset=(7, None),
        doc="The constant operand is transposed instead of what comes before and after.",
    ),
)

_transposed_y = op.Transpose(y, perm=p)

binary_of_transposed = rule(
    _binary(_transposed, _transposed_y) >> op.Transpose(_binary(x, y), perm=p),
    where=single_use(_transposed) & single_use(_transposed_y),
    opset=(7, None),
    doc="Both operands are transposed alike: the result can be, instead.",
)


def _swaps_last_two(perm: tuple[int, ...]) -> bool:
    rank = len(perm)
    return rank > 1 and perm == (*range(rank - 2), rank - 1, rank - 2)


swaps_last_two = symbolic(_swaps_last_two)

matmul_of_transposed = rule(
    op.Transpose(op.MatMul(_transposed, op.Transpose(y, perm=p)), perm=p) >> op.MatMul(y, x),
    where=swaps_last_two(p),
    inexact=True,
    doc="The transpose of a product of transposed matrices is the product the other way round.",
)

# onnxruntime sums a product with one row in another order once a matrix is transposed
_gemm = op("Gemm")

gemm_of_transposed = (
    rule(
        _gemm(_transposed, y, *zs, transA=a) >> _gemm(x, y, *zs, transA=1 - a),
        inexact=True,
        doc="Gemm transposes its first operand itself.",
    ),
    rule(
        _gemm(y, _transposed, *zs, transB=a) >> _gemm(y, x, *zs, transB=1 - a),
        inexact=True,
        doc="Gemm transposes its second operand itself.",
    ),
)

# -------------------------------------------------------------------- slices


def _bounds(match: Match, given: Sequence[Any]) -> dict[int, tuple[int, int, int]] | None:
    """Start, end and step by axis; None if one is not known."""
    lists = []
    for variable in given:
        value = match[variable]
        array = None if value is None else match.array(value)
        if value is not None and array is None:
            return None
        lists.append(None if array is None else [int(v) for v in array.ravel()])
    first, last, along, by = lists
    if first is None or last is None:
        return None
    along = list(range(len(first))) if along is None else along
    by = [1] * len(first) if by is None else by
    rank = match.rank(x)
    if rank is None and any(axis < 0 for axis in along):
        return None
    along = [axis + (rank or 0) if axis < 0 else axis for axis in along]
    return dict(zip(along, zip(first, last, by, strict=True), strict=True))


_END = 1 << 62
_Bound = tuple[int, int, int]


def slice_of_slice_bounds(size: int | None, one: _Bound, other: _Bound) -> _Bound | None:
    """Start, end and step that do what two slices of an axis do; None if it cannot be told."""
    if size is not None:
        taken = _elements(_elements(range(size), one), other)
        if not len(taken):
            return 0, 0, 1
        end = taken.stop if taken.step > 0 or taken.stop >= 0 else -_END
        return taken.start, end, taken.step
    (start, end, step), (start2, end2, step2) = one, other
    if min(start, step, start2, step2) < 0 or (end < 0 and end2 < 2**31 - 1) or end2 < 0:
        return None
    stop = end if end2 >= 2**31 - 1 else min(end, start + end2 * step)
    return start + start2 * step, stop, step * step2


def _elements(line: range, bound: _Bound) -> range:
    start, end, step = bound
    size = len(line)
    if not size:
        return line
    start, end = (v + size if v < 0 else v for v in (start, end))
    if step > 0:
        return line[min(max(start, 0), size) : min(max(end, 0), size) : step]
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return line[start : end if end >= 0 else None : step]


_slices = ((starts, ends, axes, steps), (starts2, ends2, axes2, steps2))


def _merged(match: Match) -> list[tuple[int, ...]] | None:
    inner, outer = (_bounds(match, given) for given in _slices)
    shape = match.shape(x)
    if inner is None or outer is None:
        return None
    merged = dict(inner)
    for axis, bound in outer.items():
        if axis not in inner:
            merged[axis] = bound
            continue
        size = None if shape is None else shape[axis]
        both = slice_of_slice_bounds(size if isinstance(size, int) else None, inner[axis], bound)
        if both is None:
            return None
        merged[axis] = both
    return [tuple(merged), *zip(*merged.values(), strict=True)]


def _part(k: int) -> Any:
    def part(match: Match) -> Any:
        merged = _merged(match)
        return None if merged is None else merged[k]

    return constant(computed(part))


_sliced = op.Slice(x, starts, ends, optional(axes), optional(steps))

slice_of_slice = rule(
    op.Slice(_sliced, starts2, ends2, optional(axes2), optional(steps2))
    >> op.Slice(x, _part(1), _part(2), _part(0), _part(3)),
    doc="Two slices with constant bounds are one, if it takes exactly what they take.",
)

# -------------------------------------------------------------------- joins and splits

_joined = op.Concat(*ys, axis=b)


def _same_axis(match: Match) -> bool:
    rank = match.rank(result)
    return normal([match[a]], rank) == normal([match[b]], rank) or match[a] == match[b]


concat_of_concat = rule(
    op.Concat(*xs, _joined, *zs, axis=a) >> op.Concat(*xs, *ys, *zs, axis=a),
    where=single_use(_joined) & _same_axis,
    opset=(4, None),
    doc="Parts joined along one axis are joined at once.",
)

_split = op("Split")


def _concat_of_split(count: int) -> Any:
    split = _split(x, *ys, axis=b)
    return rule(
        op.Concat(*(split[k] for k in range(count)), axis=a) >> x,
        where=lambda m: len(m.node(_split).outputs) == count and _same_axis(m),
        opset=(4, None),
        doc="All parts of a split are joined again, in their order.",
    )


concat_of_split = [_concat_of_split(count) for count in range(1, 9)]


def _split_sizes(match: Match) -> tuple[int, ...] | None:
    """The sizes of the parts that SplitToSequence makes."""
    given, shape = match.array(c), match.shape(x)
    if given is None or given.ndim:
        return None if given is None else tuple(int(size) for size in given)
    part, whole = int(given), None if shape is None else shape[match[a]]
    if not isinstance(whole, int) or part < 1:
        return None
    return tuple(min(part, whole - start) for start in range(0, whole, part))


def _split_of_sequence(count: int) -> Any:
    sequence = op.SplitToSequence(x, c, axis=a, keepdims=anything)
    split = op.Split(x, constant(computed(_split_sizes)), axis=a)
    return rule(
        outputs(*(op.SequenceAt(sequence, k) for k in range(count)))
        >> outputs(*(split[k] for k in range(count))),
        where=lambda m: len(_split_sizes(m) or ()) == count,
        opset=(13, None),
        doc="A sequence of parts, each taken out of it again, is a Split.",
    )


split_of_sequence = [_split_of_sequence(count) for count in range(2, 7)]

# -------------------------------------------------------------------- widened weights

_cast = op("Cast")
_SUNK = ("FLOAT16", "BFLOAT16", "FLOAT", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32")


def _widens(match: Match) -> bool:
    before, after = match.dtype(x), match[t]
    return (
        before is not None
        and before.name in _SUNK
        and before.bitwidth < ir.DataType(after).bitwidth
    )


gather_of_widened = rule(
    op.Gather(_cast(x, to=t), i, axis=a) >> _cast(op.Gather(x, i, axis=a), to=t),
    where=is_constant(x) & _widens,
    on_constants=True,
    doc="Only the rows of a weight that are taken are widened.",
)

slice_of_widened = rule(
    op.Slice(_cast(x, to=t), y, *zs) >> _cast(op.Slice(x, y, *zs), to=t),
    where=is_constant(x) & _widens,
    opset=(10, None),
    on_constants=True,
    doc="Only the part of a weight that is taken is widened.",
)

# -------------------------------------------------------------------- tables

_taken = op.Gather(x, i, axis=a)


def _table_axes(match: Match) -> tuple[tuple[int, ...], int] | None:
    """How to transpose a table, and along which axis to gather, instead of transposing after."""
    rank, indices = match.rank(x), match.rank(i)
    if rank is None or indices is None:
        return None
    axis = match[a] + rank if match[a] < 0 else match[a]
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
    axis = match[a] + len(table) if match[a] < 0 else match[a]
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
    _other(_taken_at, *zs)
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

# -------------------------------------------------------------------- parts of shapes

_shape = op.Shape(x)


def _is_scalar_index(match: Match) -> bool:
    return match.rank(c) == 0 and match.array(c) is not None


def _one_size(match: Match) -> bool:
    array = match.array(c)
    return array is not None and array.shape == (1,)


_start, _end = ints_of(c)[0], computed(lambda m: _end_of(int(m.array(c).ravel()[0])))


def _end_of(index: int) -> int:
    # an end beyond the rank is the rank
    return 1 << 31 if index == -1 else index + 1


size_of_one_axis = (
    rule(
        op.Unsqueeze(op.Gather(_shape, c), filled(0)) >> op.Shape(x, start=_start, end=_end),
        where=_is_scalar_index,
        opset=(15, None),
        doc="The size of an axis is a part of the shape.",
    ),
    rule(
        op.Gather(_shape, c) >> op.Shape(x, start=_start, end=_end),
        where=_one_size,
        opset=(15, None),
        doc="The size of an axis is a part of the shape.",
    ),
    rule(
        op.Slice(_shape, c, d, optional(filled(0)), optional(filled(1)))
        >> op.Shape(x, start=_start, end=ints_of(d)[0]),
        opset=(15, None),
        doc="Sizes of neighbouring axes are a part of the shape.",
    ),
)

# -------------------------------------------------------------------- broadcasts

_spreading = op.any_of(
    *("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater"),
    *("LessOrEqual", "GreaterOrEqual"),
)


def broadcasts_without_expand(match: Match) -> bool:
    """The operands of an op broadcast to its result's shape without the Expand."""
    shape = match.shape(result)
    return shape is not None and broadcast(match.shape(x), match.shape(y)) == shape


def _where_without_expand(match: Match) -> bool:
    shape = match.shape(result)
    shapes = [match.shape(v) for v in (x, y, z)]
    return shape is not None and broadcast(*shapes) == shape


expand_before_binary = (
    rule(
        _spreading(op.Expand(x, i), y) >> _spreading(x, y),
        where=broadcasts_without_expand,
        opset=(8, None),
        doc="An op that broadcasts needs no Expand before it, if the other operand is as large.",
    ),
    rule(
        _spreading(y, op.Expand(x, i)) >> _spreading(y, x),
        where=broadcasts_without_expand,
        opset=(8, None),
        doc="An op that broadcasts needs no Expand before it, if the other operand is as large.",
    ),
)

expand_before_where = [
    rule(
        op.Where(*operands) >> op.Where(x, y, z),
        where=_where_without_expand,
        doc="Where needs no Expand before it, if another operand is as large.",
    )
    for operands in (
        (op.Expand(x, i), y, z),
        (x, op.Expand(y, i), z),
        (x, y, op.Expand(z, i)),
    )
]

expand_of_expand = rule(
    op.Expand(op.Expand(x, i), y) >> op.Expand(x, y),
    where=lambda m: _covers(m.shape(result), m.array(y)),
    opset=(8, None),
    doc="The second Expand says the whole shape.",
)


def _covers(shape: Shape | None, sizes: Any) -> bool | None:
    if shape is None or sizes is None:
        return None
    return shape == tuple(int(size) for size in sizes)


_spread_out = op.any_of("Expand", "Tile")
_large = _spread_out(x, i)

constants_before_they_spread = (
    rule(
        _unary(_large) >> _spread_out(_unary(x), i),
        where=is_constant(x) & single_use(_large),
        inexact=_depends_on_place,
        opset=(8, None),
        on_constants=True,
        doc="A constant is computed with before it is repeated.",
    ),
    rule(
        _binary(_large, c) >> _spread_out(_binary(x, c), i),
        where=is_constant(x) & single_use(_large) & broadcasts_to(c, x),
        opset=(8, None),
        on_constants=True,
        doc="Two constants are computed with before one is repeated.",
    ),
    rule(
        _binary(c, _large) >> _spread_out(_binary(c, x), i),
        where=is_constant(x) & single_use(_large) & broadcasts_to(c, x),
        opset=(8, None),
        on_constants=True,
        doc="Two constants are computed with before one is repeated.",
    ),
)

# -------------------------------------------------------------------- reductions

_reduce = op.any_of(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin"),
)


def _reduced_axes(match: Match) -> tuple[int, ...] | None:
    node, rank = match.node(_reduce), match.rank(x)
    if node.op_type in ("ArgMax", "ArgMin"):
        return normal([match.attribute(_reduce, "axis")], rank)
    return axes_of(match, node, rank)


def _squeezes_reduced(match: Match) -> bool:
    reduced = _reduced_axes(match)
    return reduced is not None and reduced == axes_of(match, match.node(_squeeze), match.rank(x))


def _restores_reduced(match: Match) -> bool:
    reduced = _reduced_axes(match)
    return reduced is not None and reduced == axes_of(match, match.node(_unsqueeze), match.rank(x))


_keeping, _dropping = _reduce(x, *ys, keepdims=1), _reduce(x, *ys, keepdims=0)

squeeze_of_reduced = rule(
    _squeeze(_keeping, *zs) >> _reduce(x, *ys, keepdims=0),
    where=single_use(_keeping) & _squeezes_reduced,
    doc="A reduction can drop the reduced axes itself.",
)

unsqueeze_of_reduced = rule(
    _unsqueeze(_dropping, *zs) >> _reduce(x, *ys, keepdims=1),
    where=single_use(_dropping) & _restores_reduced,
    doc="A reduction can keep the reduced axes itself.",
)
