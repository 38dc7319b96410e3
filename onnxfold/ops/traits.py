"""Properties of ops for analyses, passes and rules."""

from __future__ import annotations

import enum


class Trait(enum.Flag):
    """A property of an op."""

    COMMUTES = enum.auto()
    """The two operands may be exchanged."""
    EXACT = enum.auto()
    """Element-wise with results that do not depend on the position in onnxruntime; see ORDERS."""
    VECTORIZED = enum.auto()
    """EXACT only in float32. Log, Sin, Cos, Softplus, Elu and others do not have this trait:
    other code computes their last elements, which do not fill a vector register."""
    ORDERS = enum.auto()
    """Compares numbers. onnxruntime's SIMD code compares the lower halves of int64 as signed
    numbers, so the result depends on the position of an element."""
    LIKE_FIRST = enum.auto()
    """The result has the dtype and the shape of the first operand."""
    REDUCES = enum.auto()
    """Reduces the axes in ``axes`` to size 1, or removes them."""
    MULTIPLIES = enum.auto()
    """A matrix product. Each element is multiplied by at most all elements of the other operand."""
    ATTENDS = enum.auto()
    """An attention: a product of queries and keys, and a product of its result and values."""
    CONVOLVES = enum.auto()
    """A window with weights moves over all axes except the first two."""
    POOLS = enum.auto()
    """A window without weights moves over all axes except the first two."""
    MOVES = enum.auto()
    """The results consist of elements of the first operand, or of all operands of a Concat."""
    REPEATS = enum.auto()
    """Repeats elements of the operand."""
    SELECTS = enum.auto()
    """Selects elements, each any number of times."""
    FREE = enum.auto()
    """Runtimes execute the op without reading elements."""
    PLACES = enum.auto()
    """Moves, selects or converts elements in another way, without arithmetic."""
    CONVERTS = enum.auto()
    """Converts elements to another dtype."""
    ALONG_AXES = enum.auto()
    """Reads each element once or twice. All attributes except tensors are axes or types."""
    HEAVY = enum.auto()
    """Many operations per element."""
    UNBOUNDED = enum.auto()
    """The number of operations is unknown."""
    REREADS = enum.auto()
    """A compiled kernel that contains the op reads the operand again, or stores the result."""
    ENDS_WITH_SUM = enum.auto()
    """onnxruntime adds a constant at the end, so the rounding error is absolute."""
    SIZED_BY_FLOATS = enum.auto()
    """Elements of floating-point operands determine the shape of the result."""
    SCALES = enum.auto()
    """Multiplies sizes by floating-point scales, which onnx and onnxruntime round differently."""
    READS_AT_FLOATS = enum.auto()
    """Reads at positions that floating-point operands determine."""
    ANY_SIZES = enum.auto()
    """Accepts operands of any sizes."""
    QUANTIZES = enum.auto()
    """Converts between numbers and quantized numbers."""
    USES_BITS = enum.auto()
    """The result depends on the number of bits of the dtype."""
    TEXT = enum.auto()
    """Changes or splits strings. The results consist of words of the operands."""


COPIES = Trait.MOVES | Trait.REPEATS | Trait.SELECTS | Trait.FREE
"""Ops with one of these traits compute no elements."""

WITHOUT_ARITHMETIC = COPIES | Trait.PLACES
"""Ops with one of these traits perform no arithmetic operation on elements."""

ELEMENTWISE = Trait.EXACT | Trait.VECTORIZED
"""Ops with one of these traits compute each element of the result from one of the operand."""
