"""Buffers: constant values inside the optimizer, and the blocks of memory they look at."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.ir.storage import MappedFile, Span, data_bytes

Array = npt.NDArray[Any]


class Memory(enum.Enum):
    """Where the bytes of a region are, and whether the pool accounts for them."""

    MAPPED = "mapped"
    """In a file of the model, read through a shared mapping: takes no memory of the process."""
    FOREIGN = "foreign"
    """In an object of the model: a parsed protobuf field, or an array of the caller."""
    OWNED = "owned"
    """Allocated for a result: counted as live until the last buffer on it is freed."""
    SPILLED = "spilled"
    """Moved to an unlinked scratch file, read through a mapping."""


@dataclass(eq=False, slots=True)
class Region:
    """A block of memory and the buffers that view it; the last of them frees it."""

    root: object
    nbytes: int
    kind: Memory
    buffers: set[Buffer] = field(default_factory=set)
    file: MappedFile | None = None
    """The file behind a mapped region, or the part of the scratch file behind a spilled one."""


class Deferred:
    """A computation whose results are known by shape and dtype only.

    ``outstanding`` counts the results that are still deferred; at zero the operands are released.
    """

    __slots__ = ("operands", "outstanding")

    def __init__(self, operands: tuple[Buffer | None, ...]) -> None:
        self.operands = operands
        self.outstanding = 0


class Buffer:
    """A constant value: an array that the pool accounts for, or a deferred computation of one.

    ``shape`` and ``dtype`` are always known. ``array()`` gives the elements as a read-only NumPy
    view (strided, zero-strided or contiguous), computing them first where they are deferred.
    """

    __slots__ = ("deferred", "dtype", "elements", "held", "pool", "references", "region", "shape")

    def __init__(
        self,
        pool: Any,
        shape: tuple[int, ...],
        dtype: ir.DataType,
        deferred: Deferred | None = None,
    ) -> None:
        self.pool = pool
        """The :class:`~onnxfold.fold.pool.pool.Pool` that made it."""
        self.shape = shape
        self.dtype = dtype
        self.region: Region | None = None
        self.deferred = deferred
        self.references = 0
        self.held: Buffer | None = None
        """A buffer that is retained as long as this one is there (:meth:`Pool.hold`)."""
        self.elements: Array | None = None
        """None while the elements are deferred, and after the buffer is freed."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes the value takes when stored in a model (packed for sub-byte dtypes)."""
        return data_bytes(self.dtype, self.shape)

    @property
    def is_known(self) -> bool:
        """Whether the elements are computed."""
        return self.elements is not None

    def array(self) -> Array:
        """Return the elements, which must not be kept beyond the buffer's life."""
        if self.elements is None:
            self.pool.evaluator.compute([self])
        assert self.elements is not None, "the evaluator left a requested buffer without elements"
        return self.elements

    def key(self) -> tuple[Any, ...]:
        """A key that is equal for two buffers with the same view of the same elements."""
        if self.elements is None:
            return (id(self),)
        start = self.elements.__array_interface__["data"][0]
        return (start, self.elements.strides, self.shape, self.dtype, id(self.region))

    def span(self) -> Span | None:
        """Return where the stored bytes are in a file, if they are there in row-major order."""
        region = self.region
        array = self.elements
        if region is None or region.file is None or array is None or self.dtype.bitwidth < 8:
            return None
        if region.kind is not Memory.MAPPED or not array.flags.c_contiguous or array.size == 0:
            return None
        start = array.__array_interface__["data"][0] - byte_bounds(region.file.content)[0]
        return Span(region.file, start, array.nbytes)

    def release_pages(self, part: Array | None = None) -> None:
        """Release the mapped pages that reading the elements, or a part of them, has touched."""
        region = self.region
        holder = None if region is None else region.file
        if holder is None or self.elements is None or self.elements.size == 0:
            return
        low, high = byte_bounds(self.elements if part is None else part)
        start, stop = byte_bounds(holder.content)
        if start <= low and high <= stop:
            holder.release(low - start, high - low)


def byte_bounds(array: Array) -> tuple[int, int]:
    """Return the first address of an array, and the one behind the last."""
    low = int(array.__array_interface__["data"][0])
    high = low
    for extent, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high + array.itemsize


def weight_of(array: Array) -> int:
    """Return the bytes of memory that the elements take; of strings, with their texts."""
    if array.dtype.hasobject:
        return array.nbytes + sum(len(text) for text in array.flat)
    return array.nbytes


def root_of(array: Array) -> object:
    """Return the object that owns the memory an array looks at (follows views to their base)."""
    current: Any = array
    while True:
        base = current.base
        if base is not None and not isinstance(base, np.ndarray):
            # as_strided and broadcast_to put a small holder between the view and its base
            base = getattr(base, "base", None)
        if not isinstance(base, np.ndarray):
            return current
        current = base
