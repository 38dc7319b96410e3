"""Shape functions of ops that move, select, join or repeat elements, or read or set shapes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic.application import Application, Undecided, axis_of, shape_function
from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, Shape, list_of, of_items, of_type

TO_THE_END = (1 << 31) - 1
"""The end of a slice to the end of the axis in ONNX: this, or the largest 64-bit integer."""
_ANY_END = (TO_THE_END, (1 << 63) - 1)


@shape_function("Shape")
def shape(application: Application) -> Sequence[Fact]:
    """Return the sizes from ``start`` to ``end``."""
    sizes = application.shape(0)
    if application.opset >= 15:
        sizes = sizes[application.attributes.get("start", 0) : application.attributes.get("end")]
    return [of_items(list_of(sizes), ir.DataType.INT64, application.algebra)]


@shape_function("Size")
def size(application: Application) -> Sequence[Fact]:
    """Return the product of the sizes."""
    items = np.array(application.algebra.product(application.shape(0)), object)
    return [of_items(items, ir.DataType.INT64, application.algebra)]


@shape_function("NonZero")
def non_zero(application: Application) -> Sequence[Fact]:
    """Return a row for each axis; of a scalar onnxruntime makes one row, and ONNX none."""
    rank = len(application.shape(0))
    rows = rank or application.algebra.unknown(low=0)
    return application.tensor([rows, application.algebra.unknown(low=0)], ir.DataType.INT64)


@shape_function("Gather")
def gather(application: Application) -> Sequence[Fact]:
    """Gather the elements at indexes along an axis."""
    data, indices = application.shape(0), application.shape(1)
    axis = axis_of(application.attributes.get("axis", 0), len(data))
    return application.like((*data[:axis], *indices, *data[axis + 1 :]))


@shape_function("Squeeze")
def squeeze(application: Application) -> Sequence[Fact]:
    """Remove axes of size 1. Models that remove another axis are excluded."""
    sizes = application.shape(0)
    axes = application.integers("axes", 1)
    if not axes:  # onnxruntime treats an empty list as all axes
        if any(not isinstance(d, int) for d in sizes):
            if axes is None:
                raise Undecided
            return [Fact(application.fact(0).dtype)]
        gone = {k for k, d in enumerate(sizes) if d == 1}
    else:
        gone = {axis_of(a, len(sizes)) for a in axes}
    return _reshaped(application, tuple(d for k, d in enumerate(sizes) if k not in gone))


@shape_function("Unsqueeze")
def unsqueeze(application: Application) -> Sequence[Fact]:
    """Insert axes of size 1."""
    sizes = list(application.shape(0))
    axes = application.integers("axes", 1)
    if axes is None:
        raise Undecided
    rank = len(sizes) + len(axes)
    for axis in sorted(axis_of(a, rank) for a in axes):
        sizes.insert(axis, 1)
    return _reshaped(application, tuple(sizes))


def _reshaped(application: Application, sizes: Shape) -> Sequence[Fact]:
    if application.agreeing is not None:
        product = application.algebra.product
        application.agree(product(application.shape(0)), product(sizes))
    return application.like(sizes)


@shape_function("Flatten")
def flatten(application: Application) -> Sequence[Fact]:
    """Reshape to two axes."""
    sizes = application.shape(0)
    axis = application.attributes.get("axis", 1)
    algebra = application.algebra
    return _reshaped(application, (algebra.product(sizes[:axis]), algebra.product(sizes[axis:])))


@shape_function("Reshape")
def reshape(application: Application) -> Sequence[Fact]:
    """Return the sizes of the operand, where 0 copies a size and -1 is inferred."""
    target = application.numbers(1)
    allow_zero = application.attributes.get("allowzero") == 1
    sizes = application.fact(0).shape
    if sizes is None:
        algebra = application.algebra
        plain = [n if algebra.is_positive(n) else algebra.unknown(low=0) for n in target]
        return application.like(plain)
    result = reshaped_sizes(application.algebra, sizes, tuple(target), allow_zero=allow_zero)
    return _reshaped(application, result)


def reshaped_sizes(
    algebra: Algebra, sizes: Shape, target: tuple[Number, ...], *, allow_zero: bool
) -> Shape:
    """Return the shape of the result of a Reshape.

    An element of the operand that is 0 at run time copies the size at its index. So an expression
    is the size only if it cannot be 0, if the copied size is 0 then, too, or if the number of
    elements is 0 then (see ``ASSUMPTIONS``).
    """
    if list(target).count(-1) > 1:
        raise Undecided
    missing = target.index(-1) if -1 in target else None
    strict = [_size_at(algebra, sizes, k, n, allow_zero) for k, n in enumerate(target)]
    if missing is None and strict == list(target):
        return target
    total = algebra.product(sizes)
    if missing is not None:
        others = [d for k, d in enumerate(strict) if k != missing]
        if not allow_zero:  # beside a 0, -1 is undefined, and the run fails
            algebra.required += [algebra.sub(size, 1) for size in others]
        rest = algebra.product(tuple(others))  # models where it is 0 are excluded
        if rest == 0 or (allow_zero and not _zeros_are_copied(algebra, sizes, others)):
            strict[missing] = algebra.unknown(low=0)
        else:
            strict[missing] = algebra.floor_div(total, rest)
        return tuple(strict)
    plain = [n if n != 0 or allow_zero else d for n, d in zip(target, strict, strict=True)]
    is_plain = all(algebra.low(n) >= 0 for n in plain) and algebra.product(tuple(plain)) == total
    return tuple(plain if is_plain else strict)


def _zeros_are_copied(algebra: Algebra, sizes: Shape, others: Sequence[Number]) -> bool:
    """Return whether sizes that may be 0 are copied from the input and do not make others 0.

    With ``allowzero``, onnxruntime infers a -1 beside a 0 from the sizes that are not 0.
    """
    left = list(sizes)
    copied = set[int]()
    for size in others:
        if not algebra.is_positive(size):
            if size not in left:
                return False
            left.remove(size)
            copied |= algebra.atoms_in(size)
    rest = {k for size in left if not algebra.is_positive(size) for k in algebra.atoms_in(size)}
    return not (copied and rest) or (
        copied.isdisjoint(rest) and all(algebra.atoms[k].is_dim for k in copied | rest)
    )


def _size_at(
    algebra: Algebra, sizes: Shape, place: int, number: Number, allow_zero: bool
) -> Number:
    """Return the size for an element of the operand."""
    if isinstance(number, int) and (number == -1 or number > 0):
        return number
    if allow_zero:
        return number if algebra.low(number) >= 0 else algebra.unknown(low=0)
    if place >= len(sizes):  # models with a 0 here are excluded
        if number == 0:
            raise Undecided
        return number if algebra.low(number) >= 0 else algebra.unknown(low=0)
    if algebra.low(number) < 0:  # it may be the -1
        return algebra.unknown(low=0)
    if number == 0:
        return sizes[place]
    is_certain = algebra.is_positive(number) or algebra.is_zero_with(sizes[place], number)
    return number if is_certain else algebra.unknown(low=0)


@shape_function("Transpose")
def transpose(application: Application) -> Sequence[Fact]:
    """Reorder the axes."""
    sizes = application.shape(0)
    order = application.attributes.get("perm", tuple(reversed(range(len(sizes)))))
    application.require(len(order) == len(sizes))
    if sorted(order) != list(range(len(sizes))):
        raise Undecided
    return application.like([sizes[k] for k in order])


@shape_function("Pad")
@shape_function("Pad", domain="com.microsoft")
def pad(application: Application) -> Sequence[Fact]:
    """Add the padding before and behind to each size."""
    algebra = application.algebra
    sizes, pads = application.shape(0), application.objects(1)
    if pads is None or pads.shape != (2 * len(sizes),) or application.input(3) is not None:
        raise Undecided
    is_constant = application.attributes.get("mode", "constant") in ("constant", b"constant")
    application.agree_if(is_constant)  # reflected padding is limited by the size
    before, behind = pads[: len(sizes)], pads[len(sizes) :]
    result = [
        algebra.add(d, algebra.add(a, b)) for d, a, b in zip(sizes, before, behind, strict=True)
    ]
    return application.like(result)


@shape_function("Concat")
def concat(application: Application) -> Sequence[Fact]:
    """Concatenate the operands along an axis."""
    shapes = application.shapes()
    if not shapes or any(len(s) != len(shapes[0]) for s in shapes):
        raise Undecided
    axis = axis_of(application.attributes.get("axis", 1), len(shapes[0]))
    result: list[Number] = []
    for k, sizes in enumerate(zip(*shapes, strict=True)):
        if k == axis:
            result.append(functools.reduce(application.algebra.add, sizes))
        else:  # they are all equal: the simplest is taken
            result.append(next((d for d in sizes if isinstance(d, int)), sizes[0]))
            for size in sizes:
                application.agree(result[-1], size)
    return application.like(result)


@shape_function("Split")
def split(application: Application) -> Sequence[Fact]:
    """Split into parts of given sizes, or as equal as possible."""
    algebra = application.algebra
    sizes = application.shape(0)
    axis = axis_of(application.attributes.get("axis", 0), len(sizes))
    count = application.n_outputs
    parts: Sequence[Number]
    given = application.objects(1)
    if "split" in application.attributes:
        parts = list(application.attributes["split"])
    elif application.input(1) is not None:
        if given is None or given.shape != (count,):
            raise Undecided
        parts = list(given)
    else:
        part = algebra.ceil_div(sizes[axis], count)
        last = algebra.sub(sizes[axis], algebra.mul(part, count - 1))
        parts = [part] * (count - 1) + [last]
    application.agree(sizes[axis], functools.reduce(algebra.add, parts))
    dtype = application.fact(0).dtype
    return [of_type(dtype, (*sizes[:axis], p, *sizes[axis + 1 :]), algebra) for p in parts]


@shape_function("SplitToSequence")
def split_to_sequence(application: Application) -> Sequence[Fact]:
    """Leave pieces without their axis unknown: ONNX and onnxruntime disagree on their shapes."""
    if application.input(1) is None or application.attributes.get("keepdims", 1):
        raise Undecided
    return [UNKNOWN]


@shape_function("Slice")
def slice_(application: Application) -> Sequence[Fact]:
    """Slice some axes."""
    if any(fact and fact.shape is None for fact in application.inputs[3:]):
        return [Fact(application.fact(0).dtype)]  # onnx takes such an operand for an omitted one
    sizes = list(application.shape(0))
    for axis, (start, end, step) in slice_ranges(application, len(sizes)).items():
        sizes[axis] = sliced_size(application.algebra, sizes[axis], start, end, step)
    return application.like(sizes)


def slice_ranges(application: Application, rank: int) -> dict[int, tuple[Number, Number, int]]:
    """Return start, end and step of each axis in a Slice. Raises Undecided."""
    if "starts" in application.attributes:
        starts = list(application.attributes["starts"])
        ends = list(application.attributes["ends"])
    else:
        starts, ends = application.numbers(1), application.numbers(2)
    axes = application.integers("axes", 3)
    steps = application.integers("steps", 4)
    axes = list(range(len(starts))) if axes is None else [axis_of(a, rank) for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    if not len(axes) == len(starts) == len(ends) == len(steps) or len(axes) > rank or 0 in steps:
        raise Undecided
    return dict(zip(axes, zip(starts, ends, steps, strict=True), strict=True))


def sliced_size(algebra: Algebra, size: Number, start: Number, end: Number, step: int) -> Number:
    """Return the number of elements of an axis that a slice keeps."""
    if step < 0 and end in _ANY_END:  # onnxruntime ends at the first element, ONNX before all
        return algebra.unknown(low=0)
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        # Python goes before the first element, ONNX stops at it
        stop = None if step < 0 and end < -size else end
        return len(range(size)[max(start, -size) : stop : step])
    if step < 0:
        return algebra.unknown(low=0)
    # a start behind the end of the axis is behind the end of the range, too
    first = start if algebra.low(start) >= 0 else _clamped(algebra, start, size)
    last = _clamped(algebra, end, size)
    if first is None or last is None:
        return algebra.unknown(low=0)
    length = algebra.maximum(algebra.sub(last, first), 0)
    return length if step == 1 else algebra.ceil_div(length, step)


def _clamped(algebra: Algebra, place: Number, size: Number) -> Number | None:
    """Return an index from the front, clamped to the axis; None if its sign is unknown."""
    if isinstance(place, int) and place >= TO_THE_END:
        return size
    if algebra.high(place) < 0:
        return algebra.maximum(algebra.add(place, size), 0)
    if algebra.low(place) < 0:
        return None
    return algebra.minimum(place, size)


@shape_function("ConstantOfShape")
def constant_of_shape(application: Application) -> Sequence[Fact]:
    """Return the elements of the operand as sizes."""
    value = application.attributes.get("value")
    dtype = ir.DataType.FLOAT if value is None else ir.DataType.from_numpy(value.dtype)
    return application.tensor(_sizes(application, application.numbers(0)), dtype)


def _sizes(application: Application, numbers: Sequence[Number]) -> list[Number]:
    """Return the elements of a shape operand. Models with a negative one are excluded."""
    algebra = application.algebra
    return [n if algebra.low(n) >= 0 else algebra.unknown(low=0) for n in numbers]


@shape_function("Expand")
def expand(application: Application) -> Sequence[Fact]:
    """Broadcast the shape with that in the operand."""
    sizes = tuple(_sizes(application, application.numbers(1)))
    return application.like(application.broadcast(sizes, application.shape(0)))


@shape_function("Tile")
def tile(application: Application) -> Sequence[Fact]:
    """Multiply the sizes by the repetitions."""
    sizes, repeats = application.shape(0), application.numbers(1)
    if len(repeats) != len(sizes):
        raise Undecided
    return application.like(list(map(application.algebra.mul, sizes, repeats)))


@shape_function("Range")
@shape_function("Range", domain="com.microsoft")
def range_(application: Application) -> Sequence[Fact]:
    """Count the numbers from start to limit in steps of delta."""
    algebra = application.algebra
    start, limit, delta = (application.objects(k) for k in range(3))
    dtype = application.fact(0).dtype
    if dtype is None or not dtype.is_integer():  # onnx and onnxruntime round floats differently
        return application.tensor([algebra.unknown(low=0)], dtype)
    if start is None or limit is None or delta is None:
        raise Undecided
    step = delta.item()
    if not isinstance(step, int) or step == 0:
        return application.tensor([algebra.unknown(low=0)], dtype)
    distance = algebra.sub(limit.item(), start.item())
    if step < 0:
        distance, step = algebra.mul(distance, -1), -step
    count = algebra.maximum(algebra.ceil_div(distance, step), 0)
    return application.tensor([count], dtype)
