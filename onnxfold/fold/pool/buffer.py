"""Buffers of constant values, and the regions of memory that the buffers view."""

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
    """The kind of memory of a region. Only owned memory counts toward the limit of the pool."""

    MAPPED = "mapped"
    """A memory-mapped file of the model. The mapping takes no private memory."""
    FOREIGN = "foreign"
    """An object of the model: a parsed protobuf field, or an array of the caller."""
    OWNED = "owned"
    """Memory allocated for a result, live until the last buffer that views it is freed."""
    SPILLED = "spilled"
    """A mapped part of the unlinked scratch file to which an owned region was moved."""


@dataclass(eq=False, slots=True)
class Region:
    """A block of memory and the buffers that view the block.

    The memory is freed with the last of these buffers.
    """

    root: object
    """The object that identifies the memory; see `root_of`."""
    nbytes: int
    """The bytes of owned or spilled memory; 0 for mapped files and objects of the model."""
    kind: Memory
    buffers: set[Buffer] = field(default_factory=set)
    file: MappedFile | None = None
    """The file of a mapped region, or the part of the scratch file of a spilled region."""


class Deferred:
    """A deferred computation. Only the shapes and dtypes of its results are known.

    ``outstanding`` is the number of results that are neither computed nor freed yet. When the
    number reaches zero, the operands are released.
    """

    __slots__ = ("operands", "outstanding")

    def __init__(self, operands: tuple[Buffer | None, ...]) -> None:
        self.operands = operands
        self.outstanding = 0


class Buffer:
    """A constant value: an array in the pool, or a deferred computation of an array.

    ``shape`` and ``dtype`` are always known. ``array()`` returns the elements as a read-only NumPy
    view with any strides. It computes deferred elements first.
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
        """The :class:`~onnxfold.fold.pool.pool.Pool` that created the buffer."""
        self.shape = shape
        self.dtype = dtype
        self.region: Region | None = None
        self.deferred = deferred
        self.references = 0
        self.held: Buffer | None = None
        """A buffer that is retained as long as this buffer exists (:meth:`Pool.hold`), or None."""
        self.elements: Array | None = None
        """None while the elements are deferred and after the buffer is freed."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the value in a model file. Elements narrower than a byte are packed."""
        return data_bytes(self.dtype, self.shape)

    @property
    def is_known(self) -> bool:
        """Whether the elements are computed."""
        return self.elements is not None

    def array(self) -> Array:
        """Return the elements. Deferred elements are computed first.

        The array must not be used after the buffer is freed.

        Raises:
            ComputationFailed: The elements cannot be computed.
        """
        if self.elements is None:
            self.pool.evaluator.compute([self])
        assert self.elements is not None, "the evaluator left a requested buffer without elements"
        return self.elements

    def key(self) -> tuple[Any, ...]:
        """Return a key that is equal for two buffers with the same view of the same memory.

        The key of a deferred buffer differs from all others.
        """
        if self.elements is None:
            return (id(self),)
        start = self.elements.__array_interface__["data"][0]
        return (start, self.elements.strides, self.shape, self.dtype, id(self.region))

    def span(self) -> Span | None:
        """Return the position of the stored bytes in a mapped file of the model.

        The result is None if the elements are not in such a file in row-major order, or if they are
        narrower than a byte. It is also None for an empty buffer.
        """
        region = self.region
        array = self.elements
        if region is None or region.file is None or array is None or self.dtype.bitwidth < 8:
            return None
        if region.kind is not Memory.MAPPED or not array.flags.c_contiguous or array.size == 0:
            return None
        start = array.__array_interface__["data"][0] - byte_bounds(region.file.content)[0]
        return Span(region.file, start, array.nbytes)

    def release_pages(self, part: Array | None = None) -> None:
        """Release the mapped pages of the elements, or only those of a part of the elements.

        Nothing happens if the elements are not in a mapped file or the scratch file.
        """
        region = self.region
        file = None if region is None else region.file
        if file is None or self.elements is None or self.elements.size == 0:
            return
        low, high = byte_bounds(self.elements if part is None else part)
        start, stop = byte_bounds(file.content)
        if start <= low and high <= stop:
            file.release(low - start, high - low)


def byte_bounds(array: Array) -> tuple[int, int]:
    """Return the first address of an array and the address after the last one."""
    low = int(array.__array_interface__["data"][0])
    high = low
    for extent, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high + array.itemsize


def allocated_bytes(array: Array) -> int:
    """Return the bytes of memory that an array takes, including the contents of its strings."""
    if array.dtype.hasobject:
        return array.nbytes + sum(len(string) for string in array.flat)
    return array.nbytes


def root_of(array: Array) -> object:
    """Return the last array in the chain of bases of an array.

    Views of the same memory have the same last array.
    """
    current: Any = array
    while True:
        base = current.base
        if base is not None and not isinstance(base, np.ndarray):
            # as_strided and broadcast_to insert a helper object between the view and its base
            base = getattr(base, "base", None)
        if not isinstance(base, np.ndarray):
            return current
        current = base
