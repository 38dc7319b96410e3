"""The pool of the buffers of constant values, and the scratch file for spilled memory."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir

from onnxfold.fold.pool.blocks import WORKING_BYTES, Source, blocks_of, boxes
from onnxfold.fold.pool.buffer import (
    Array,
    Buffer,
    Deferred,
    Memory,
    Region,
    allocated_bytes,
    root_of,
)
from onnxfold.ir import storage
from onnxfold.support.errors import OnnxFoldError
from onnxfold.support.parallel import THREADS, for_each

# Default of `memory_limit`: bytes of owned memory above which regions are spilled to disk. The
# memory of a run must not grow with the model.
DEFAULT_LIMIT = 512 << 20
# Regions and results with fewer bytes are not spilled.
_MIN_SPILLED_BYTES = 1 << 20
# Bytes of the blocks in which a deferred result is computed.
_BLOCK_BYTES = 1 << 20
# Bytes of these blocks if the elements of a large result are read across the rows.
_SLAB_BYTES = 1 << 22
STORING_BYTES = (WORKING_BYTES + _SLAB_BYTES) * THREADS
"""Bytes of working memory that all threads take to compute a deferred result."""

_dtype_of = functools.cache(ir.DataType.from_numpy)


@dataclass
class Statistics:
    """Counters of one pool.

    Live bytes are the bytes of owned memory and of working memory, without mapped weights.
    """

    live: int = 0
    """The number of existing buffers."""
    live_bytes: int = 0
    peak_bytes: int = 0
    spilled_bytes: int = 0
    materialized: int = 0
    """The number of buffers that became tensors of the output model."""


@runtime_checkable
class Watch(Protocol):
    """An observer of the contents of a pool."""

    def holds(self, nbytes: int) -> None:
        """Record the number of live bytes after a change."""

    def bound(self, value: ir.Value, buffer: Buffer) -> None:
        """Record that a value of the model got a buffer."""


class Pool:
    """Reference-counted array buffers for constant values.

    A user of a buffer retains the buffer and releases it afterwards. The last release frees the
    buffer. A region of memory is freed with the last buffer that views the region.

    Args:
        memory_limit: Bytes of owned memory above which the largest regions are spilled to a
            scratch file; None for ``DEFAULT_LIMIT``.
        scratch_folder: The folder for the scratch file; None for the system's temporary folder. The
            scratch file is unlinked when it is opened.
        watch: An observer of the pool, or None.
    """

    def __init__(
        self,
        *,
        memory_limit: int | None = None,
        scratch_folder: str | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.statistics = Statistics()
        self._watch = watch
        self.memory_limit = DEFAULT_LIMIT if memory_limit is None else memory_limit
        self._scratch = Scratch(scratch_folder)
        self._regions: dict[int, Region] = {}
        self._large: dict[Region, None] = {}
        self._bound: dict[ir.Value, Buffer] = {}
        self.evaluator: Any = None
        """The ``onnxfold.fold.evaluator.Evaluator`` that computes deferred buffers.

        The constructor of the evaluator sets this attribute."""

    def buffer_of(self, value: ir.Value) -> Buffer:
        """Return the buffer of a constant value.

        If the value is not bound, it is bound to a buffer that views its tensor.

        Raises:
            KeyError: The value has neither a buffer nor a tensor.
        """
        if value in self._bound:
            return self._bound[value]
        if value.const_value is None:
            raise KeyError(f"value {value.name!r} is not constant")
        return self.bind(value, self.wrap(value.const_value))

    def is_bound(self, value: ir.Value) -> bool:
        """Return whether the value is bound to a buffer."""
        return value in self._bound

    def bind(self, value: ir.Value, buffer: Buffer) -> Buffer:
        """Bind a value without a buffer to a buffer, and retain and return this buffer."""
        buffer.references += 1
        self._bound[value] = buffer
        if self._watch is not None:
            self._watch.bound(value, buffer)
        return buffer

    def unbind(self, value: ir.Value) -> None:
        """Release the buffer of a value, if any. The value must have no remaining uses."""
        buffer = self._bound.pop(value, None)
        if buffer is not None:
            self.release(buffer)

    def unbind_all(self, except_for: Iterable[ir.Value] = ()) -> None:
        """Release the buffers of all values except ``except_for``."""
        kept = set(except_for)
        for value in [*self._bound]:
            if value not in kept:
                self.unbind(value)

    def wrap(self, tensor: ir.TensorProtocol) -> Buffer:
        """Return a buffer of a tensor's elements.

        The buffer of a `BufferTensor` is returned itself. A buffer of a tensor in a file views the
        mapped file, unless the elements are narrower than a byte.
        """
        raw = getattr(tensor, "raw", None)
        if isinstance(raw, Buffer):
            return raw
        span = storage.span_of(tensor)
        dtype = tensor.dtype
        if span is not None and dtype.bitwidth >= 8:
            array = span.array().view(dtype.numpy()).reshape(storage.sizes_of(tensor))
            buffer = self.adopt(array, dtype, Memory.MAPPED)
            if buffer.region is not None:
                buffer.region.file = span.file
            return buffer
        return self.adopt(np.asarray(tensor.numpy()), dtype, Memory.FOREIGN)

    def adopt(
        self, array: Array, dtype: ir.DataType | None = None, kind: Memory = Memory.OWNED
    ) -> Buffer:
        """Return a new buffer of an array. The array may view memory that the pool already has.

        The default dtype is that of the array.
        """
        buffer = Buffer(self, array.shape, dtype or _dtype_of(array.dtype))
        self.statistics.live += 1
        self._attach(buffer, array, kind)
        return buffer

    def defer(self, shape: tuple[int, ...], dtype: ir.DataType, deferred: Deferred) -> Buffer:
        """Return a buffer whose elements are computed at their first use.

        The operands are retained until all results are computed or freed.
        """
        buffer = Buffer(self, shape, dtype, deferred)
        if deferred.outstanding == 0:
            for operand in deferred.operands:
                if operand is not None:
                    operand.references += 1
        deferred.outstanding += 1
        self.statistics.live += 1
        return buffer

    def fulfil(self, buffer: Buffer, array: Array) -> None:
        """Set the elements of a deferred buffer.

        Raises:
            ValueError: The array does not have the shape and the dtype of the buffer.
        """
        if tuple(array.shape) != buffer.shape:
            raise ValueError(f"expected shape {list(buffer.shape)}, got {list(array.shape)}")
        if buffer.dtype != ir.DataType.STRING and array.dtype != buffer.dtype.numpy():
            raise ValueError(f"expected {buffer.dtype.name}, got {array.dtype}")
        deferred = buffer.deferred
        buffer.deferred = None
        buffer.pool._attach(buffer, array, Memory.OWNED)
        if deferred is not None:
            for operand in _release_operands(deferred):
                self.discard(operand)

    def _attach(self, buffer: Buffer, array: Array, kind: Memory) -> None:
        root: Any = root_of(array)
        region = self._regions.get(id(root))
        if region is None:
            nbytes = allocated_bytes(root) if kind is Memory.OWNED else 0
            region = Region(root, nbytes, kind)
            self._regions[id(root)] = region
            if nbytes:
                self.add_live(nbytes)
                if nbytes >= _MIN_SPILLED_BYTES and isinstance(root, np.ndarray):
                    is_dense = root.flags.c_contiguous or root.flags.f_contiguous
                    if is_dense and not root.dtype.hasobject:
                        self._large[region] = None
                self.make_room(0, keep=region)
        region.buffers.add(buffer)
        buffer.region = region
        if array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        buffer.elements = array

    def add_live(self, nbytes: int) -> None:
        """Add a number of bytes, which may be negative, to the live bytes."""
        statistics = self.statistics
        statistics.live_bytes += nbytes
        if statistics.live_bytes > statistics.peak_bytes:
            statistics.peak_bytes = statistics.live_bytes
        if self._watch is not None:
            self._watch.holds(statistics.live_bytes)

    def retain(self, buffer: Buffer) -> None:
        """Add a reference to the buffer."""
        buffer.references += 1

    def release(self, buffer: Buffer) -> None:
        """Drop a reference to the buffer. If no reference remains, the buffer is freed."""
        buffer.references -= 1
        if buffer.references == 0:
            self.discard(buffer)

    def hold(self, buffer: Buffer, other: Buffer | None) -> None:
        """Retain ``other`` as long as ``buffer`` exists.

        The previously held buffer is released. If ``other`` is None, no buffer is held afterwards.
        """
        previous = buffer.held
        buffer.held = other
        if other is not None:
            self.retain(other)
        if previous is not None:
            self.release(previous)

    def discard(self, buffer: Buffer) -> None:
        """Free a buffer without references."""
        # A loop instead of recursion: a chain of deferred operations can be as deep as the graph.
        pending = [buffer]
        while pending:
            current = pending.pop()
            pool = current.pool  # a tensor of an earlier pool may be an operand
            pool.statistics.live -= 1
            region = current.region
            current.region = None
            current.elements = None  # remaining references to the buffer must not keep its memory
            if region is not None:
                region.buffers.discard(current)
                if not region.buffers:
                    del pool._regions[id(region.root)]
                    if region.kind is Memory.OWNED:
                        pool._large.pop(region, None)
                        pool.add_live(-region.nbytes)
            deferred = current.deferred
            current.deferred = None
            if deferred is not None:
                pending.extend(_release_operands(deferred))
            if current.held is not None:
                pending.extend(_release_all([current.held]))
                current.held = None

    def close(self) -> None:
        """Free the memory of all buffers. Tensors of the buffers must not be read afterwards."""
        for region in self._regions.values():
            for buffer in region.buffers:
                buffer.elements = None
                buffer.region = None
        self._regions.clear()
        self._large.clear()

    def store(self, source: Source) -> Array:
        """Return the elements of a source, computed block by block with several threads.

        The array is in row-major order. An array that takes more than half of the memory limit is
        in the scratch file. So is an array that does not fit in memory after other regions are
        spilled. Arrays with fewer bytes than `_MIN_SPILLED_BYTES` are always in memory.

        Raises:
            OnnxFoldError: The scratch file cannot be written.
        """
        dtype = source.dtype.numpy()
        nbytes = math.prod(source.shape) * dtype.itemsize
        in_memory = nbytes < _MIN_SPILLED_BYTES
        if 2 * nbytes <= self.memory_limit:
            self.make_room(nbytes + STORING_BYTES)
            in_memory |= self.statistics.live_bytes + nbytes <= self.memory_limit
        working = STORING_BYTES + nbytes * in_memory
        self.add_live(working)
        try:
            if in_memory:
                array = np.empty(source.shape, dtype)
                blocks = boxes(source.shape, _BLOCK_BYTES // dtype.itemsize)
                threads = THREADS if nbytes > _BLOCK_BYTES else 1
                for_each(blocks, lambda box: source.fill(box, array[box]), threads)
            else:
                part = self._scratch.create(nbytes)
                storage.write_tiles(
                    blocks_of(source, _BLOCK_BYTES, _SLAB_BYTES), part.write, THREADS
                )
                self._mark_spilled(Region(None, nbytes, Memory.SPILLED), part)
                array = part.content.view(dtype).reshape(source.shape)
        finally:
            self.add_live(-working)
        source.release()
        return array

    def make_room(self, nbytes: int, keep: Region | None = None) -> None:
        """Spill the largest owned regions, except ``keep``, until ``nbytes`` more bytes fit.

        If all large regions are spilled, the limit may still be exceeded.

        Raises:
            OnnxFoldError: The scratch file cannot be written.
        """
        while self.statistics.live_bytes + nbytes > self.memory_limit:
            movable = [region for region in self._large if region is not keep]
            if not movable:
                return
            self._move_to_scratch(max(movable, key=lambda region: region.nbytes))

    def _move_to_scratch(self, region: Region) -> None:
        old: Any = region.root
        del self._regions[id(old)]
        del self._large[region]
        part = self._scratch.create(old.nbytes)
        part.write(old.reshape(-1, order="A").view(np.uint8).data, 0)
        start = old.__array_interface__["data"][0]
        for buffer in region.buffers:
            view = buffer.array()
            offset = view.__array_interface__["data"][0] - start
            buffer.elements = np.ndarray(
                view.shape, view.dtype, buffer=part.content, offset=offset, strides=view.strides
            )
        self._mark_spilled(region, part)
        self.add_live(-region.nbytes)

    def _mark_spilled(self, region: Region, part: ScratchPart) -> None:
        region.root = root_of(part.content)
        region.kind = Memory.SPILLED
        region.file = part
        self._regions[id(region.root)] = region
        self.statistics.spilled_bytes += region.nbytes


def _release_operands(deferred: Deferred) -> list[Buffer]:
    """Decrement the count of outstanding results, and release the operands after the last one.

    Returns the operands without references.
    """
    deferred.outstanding -= 1
    if deferred.outstanding:
        return []
    unused = _release_all(deferred.operands)
    deferred.operands = ()
    return unused


def _release_all(buffers: Sequence[Buffer | None]) -> list[Buffer]:
    """Drop a reference to each buffer, and return the buffers without references."""
    unused = []
    for buffer in buffers:
        if buffer is not None:
            buffer.references -= 1
            if buffer.references == 0:
                unused.append(buffer)
    return unused


class ScratchPart(storage.MappedFile):
    """A part of the scratch file. It is written in pieces and read through a mapping."""

    __slots__ = ("_descriptor", "_folder", "_offset")

    def __init__(self, descriptor: int, offset: int, nbytes: int, folder: str) -> None:
        super().__init__(descriptor, folder, offset, nbytes)
        self._descriptor = descriptor
        self._offset = offset
        self._folder = folder

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at ``offset`` in this part. Several threads may do this concurrently.

        Raises:
            OnnxFoldError: The bytes cannot be written, for example because the disk is full.
        """
        with _errors_with_path(self._folder):
            storage.write_at(self._descriptor, data, self._offset + offset)


class Scratch:
    """An unlinked file with a mapping for each part. The system removes the file at exit."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0

    def create(self, nbytes: int) -> ScratchPart:
        """Append a part of ``nbytes`` bytes, at least one, to the file.

        The first call creates the file.

        Raises:
            OnnxFoldError: The file cannot be created or extended.
        """
        folder = self._folder or tempfile.gettempdir()
        with _errors_with_path(folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            descriptor = self._file.fileno()
            offset = -(-self._end // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self._end = offset + nbytes
            os.ftruncate(descriptor, self._end)
            return ScratchPart(descriptor, offset, nbytes, folder)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()


@contextlib.contextmanager
def _errors_with_path(folder: str) -> Iterator[None]:
    """Convert an OSError in the context into an OnnxFoldError that names the folder."""
    try:
        yield
    except OSError as error:
        reason = f"intermediate results cannot be written: {error.strerror or error}"
        raise OnnxFoldError(reason, file=folder) from error
