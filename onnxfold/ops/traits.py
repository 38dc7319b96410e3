"""Properties of ops for analyses, passes and rules."""

from __future__ import annotations

import enum


class Trait(enum.Flag):
    """A property of an op."""

    COMMUTES = enum.auto()
    """For two operands, the result is the same if they are exchanged."""
    EXACT = enum.auto()
    """Element-wise. In onnxruntime, the result for an element does not depend on its position,
    except if `Op.depends_on_position` or `Op.rounds_by_position` is true."""
    VECTORIZED = enum.auto()
    """Like EXACT, but only in float32. Log, Sin, Cos, Softplus, Elu and others do not have this
    trait. Other code computes their last elements if these do not fill a vector register."""
    ORDERS = enum.auto()
    """Computes a sign, a minimum or a maximum. onnxruntime's SIMD code compares the lower halves of
    int64 as signed numbers, so the result depends on the position of an element."""
    LIKE_FIRST = enum.auto()
    """The first result has the dtype and the shape of the first operand."""
    REDUCES = enum.auto()
    """Reduces the axes in the attribute or operand ``axes`` to size 1, or removes them."""
    MULTIPLIES = enum.auto()
    """A matrix product. Each element of an operand is multiplied by at most all elements of the
    other operand."""
    ATTENDS = enum.auto()
    """An attention: queries are multiplied by keys, and the resulting weights by values."""
    CONVOLVES = enum.auto()
    """A window with weights moves over all axes except the first two."""
    POOLS = enum.auto()
    """A window without weights moves over all axes except the first two."""
    MOVES = enum.auto()
    """The results consist of elements of the first operand. For Concat, they consist of elements of
    all operands."""
    REPEATS = enum.auto()
    """Repeats elements of an operand, or generates elements from a few numbers."""
    SELECTS = enum.auto()
    """Selects elements of the first operand, each any number of times."""
    FREE = enum.auto()
    """Runtimes execute the op without reading elements."""
    PLACES = enum.auto()
    """Moves, selects or converts elements without arithmetic, in other ways than MOVES, REPEATS,
    SELECTS and FREE."""
    CONVERTS = enum.auto()
    """Converts elements to another dtype."""
    ALONG_AXES = enum.auto()
    """Reads each element once or twice, perhaps along an axis. No element is an index or a size."""
    HEAVY = enum.auto()
    """Requires many operations for each element."""
    UNBOUNDED = enum.auto()
    """The number of operations is not limited by the numbers of elements. It is unknown, unless the
    definition overrides `Op.cost`."""
    REREADS = enum.auto()
    """A compiled kernel of several ops reads the operand of this op again, or stores its result."""
    ENDS_WITH_SUM = enum.auto()
    """onnxruntime's kernel adds a constant at the end, so the rounding error is absolute."""
    SIZED_BY_FLOATS = enum.auto()
    """Elements of floating-point operands determine the shape of the result."""
    SCALES = enum.auto()
    """Multiplies sizes by floating-point scales. onnx and onnxruntime round the products
    differently."""
    READS_AT_FLOATS = enum.auto()
    """Reads at positions that floating-point operands determine."""
    ANY_SIZES = enum.auto()
    """Accepts operands of any sizes."""
    QUANTIZES = enum.auto()
    """Converts floating-point numbers to quantized numbers, or back."""
    USES_BITS = enum.auto()
    """The result depends on the number of bits of the dtype."""
    TEXT = enum.auto()
    """Changes, splits or selects strings. The results consist of words of the operands."""


COPIES = Trait.MOVES | Trait.REPEATS | Trait.SELECTS | Trait.FREE
"""Ops with one of these traits copy elements, or fill a tensor with them. Range and an
interpolating Resize also compute elements."""

WITHOUT_ARITHMETIC = COPIES | Trait.PLACES
"""By default, `Op.cost` counts no operations for ops with one of these traits."""

ELEMENTWISE = Trait.EXACT | Trait.VECTORIZED
"""Ops with one of these traits compute each element of the result from one element of the
operand."""
