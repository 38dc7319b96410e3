"""Symbolic rules of sequences: what is known of each element, where their number is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Number
from onnxfold.analysis.symbolic.fact import MOST_ELEMENTS, Fact, common, of_items, of_type
from onnxfold.analysis.symbolic.table import (
    Application,
    Undecided,
    axis_of,
    fact_of,
    rule,
    shape_of,
)


def _sequence(parts: Sequence[Fact], dtype: ir.DataType | None) -> Fact:
    """The fact of a sequence with these elements."""
    if len(parts) > MOST_ELEMENTS:
        raise Undecided
    return Fact(other=_of_any_shapes(dtype).other, parts=tuple(parts))


def _of_any_shapes(dtype: ir.DataType | None) -> Fact:
    """The fact of a sequence of which only the dtype is known."""
    if dtype is None:
        raise Undecided
    tensor = onnx.helper.make_tensor_type_proto(dtype.value, None)
    return Fact(other=onnx.helper.make_sequence_type_proto(tensor).SerializeToString())


def _parts(application: Application, k: int = 0) -> tuple[Fact, ...]:
    parts = fact_of(application, k).parts
    if parts is None:
        raise Undecided
    return parts


def _place(application: Application, k: int, count: int) -> int | None:
    """A place in a sequence counted from the front; None if it is known only in a run."""
    known = application.known(k)
    if known is None or known.size != 1:
        return None
    place = int(known.reshape(-1)[0])
    if not -count <= place < count:
        raise Undecided
    return place % count


@rule("SequenceConstruct")
def construct(application: Application) -> Sequence[Fact]:
    """Its elements are the operands."""
    parts = [fact_of(application, k) for k in range(len(application.inputs))]
    return [_sequence(parts, parts[0].dtype)]


@rule("SequenceEmpty")
def empty(application: Application) -> Sequence[Fact]:
    """No elements."""
    dtype = application.attributes.get("dtype", ir.DataType.FLOAT.value)
    return [_sequence((), ir.DataType(dtype))]


@rule("SequenceInsert")
def insert(application: Application) -> Sequence[Fact]:
    """One element more, at the end or at a place."""
    parts, new = list(_parts(application)), fact_of(application, 1)
    place = len(parts)
    if application.input(2) is not None:
        known = application.known(2)
        if known is None or known.size != 1:
            raise Undecided
        place = int(known.reshape(-1)[0])
        if not -len(parts) <= place <= len(parts):
            raise Undecided
        place = place + len(parts) if place < 0 else place
    parts.insert(place, new)
    return [_sequence(parts, new.dtype)]


@rule("SequenceErase")
def erase(application: Application) -> Sequence[Fact]:
    """One element less, at the end or at a place."""
    parts = list(_parts(application))
    if not parts:
        raise Undecided
    dtype = parts[0].dtype
    given = application.input(1) is not None
    place = _place(application, 1, len(parts)) if given else len(parts) - 1
    if place is None:
        raise Undecided
    del parts[place]
    return [_sequence(parts, dtype)]


@rule("SequenceAt")
def at(application: Application) -> Sequence[Fact]:
    """One element; of one that is not known what all have in common."""
    parts = _parts(application)
    if not parts:
        raise Undecided
    place = _place(application, 1, len(parts))
    if place is not None:
        return [parts[place]]
    result = parts[0]
    for part in parts[1:]:
        result = common(application.algebra, result, part)
    if result.dtype is None:
        raise Undecided
    return [result]


@rule("SequenceLength")
def length(application: Application) -> Sequence[Fact]:
    """How many elements there are."""
    count = np.empty((), object)
    count[()] = len(_parts(application))
    return [of_items(count, ir.DataType.INT64, application.algebra)]


@rule("SplitToSequence")
def split_to_sequence(application: Application) -> Sequence[Fact]:
    """Pieces along an axis: of one size but for the last one, or of given sizes."""
    algebra = application.algebra
    sizes = shape_of(application, 0)
    axis = axis_of(application.attributes.get("axis", 0), len(sizes))
    dtype = fact_of(application, 0).dtype
    given = application.input(1) is not None
    keep = bool(application.attributes.get("keepdims", 1))
    if given and not keep:  # ONNX says that it does not matter then; onnxruntime heeds it
        return [_of_any_shapes(dtype)]
    pieces = _pieces(application, sizes[axis], given=given)
    if not keep:
        shapes = [(*sizes[:axis], *sizes[axis + 1 :])] * len(pieces)
    else:
        shapes = [(*sizes[:axis], piece, *sizes[axis + 1 :]) for piece in pieces]
    return [_sequence([of_type(dtype, shape, algebra) for shape in shapes], dtype)]


def _pieces(application: Application, total: Number, *, given: bool) -> list[Number]:
    wanted = application.objects(1) if given else np.array(1, object)
    if wanted is None:
        raise Undecided
    if wanted.ndim == 1:
        return list(wanted)
    piece = wanted.item()
    if not isinstance(piece, int) or not isinstance(total, int) or piece < 1:
        raise Undecided
    if total > piece * MOST_ELEMENTS:
        raise Undecided
    return [min(piece, total - start) for start in range(0, total, piece)]


@rule("ConcatFromSequence")
def concat_from_sequence(application: Application) -> Sequence[Fact]:
    """All elements one after the other, or on a new axis."""
    algebra = application.algebra
    parts = _parts(application)
    shapes = [part.shape for part in parts if part.shape is not None]
    if not parts or len(shapes) != len(parts) or len({len(s) for s in shapes}) != 1:
        raise Undecided
    is_new = bool(application.attributes.get("new_axis", 0))
    rank = len(shapes[0]) + is_new
    axis = axis_of(application.attributes["axis"], rank)
    total: Number = len(parts) if is_new else 0
    for shape in shapes:
        total = total if is_new else algebra.add(total, shape[axis])
    # all others are equal: what is a number stands for all
    alike = [
        next((d for d in dims if isinstance(d, int)), dims[0]) for dims in zip(*shapes, strict=True)
    ]
    result = [*alike[:axis], total, *alike[axis + (not is_new) :]]
    return [of_type(parts[0].dtype, result, algebra)]
