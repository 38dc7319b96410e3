"""The pool: every constant value is a buffer here, and only final results become tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.pool.buffer import Array, Block, Buffer, Deferred, Memory, root_of
from onnxfold.pool.spill import Scratch
from onnxfold.pool.statistics import Statistics


class Pool:
    """Reference-counted array buffers for constant values.

    Who needs a buffer retains it and releases it afterwards; at the last release the buffer is
    freed, and its memory with the last buffer that looks at it: a view keeps its base alive.

    Args:
        memory_limit: Bytes of owned memory above which the largest blocks are spilled to a
            scratch file; None for no bound.
        scratch_folder: Folder for the scratch file (unlinked as soon as it is open).
    """

    def __init__(
        self, *, memory_limit: int | None = None, scratch_folder: str | None = None
    ) -> None:
        self.statistics = Statistics()
        self.memory_limit = memory_limit
        self._scratch = Scratch(scratch_folder)
        self._blocks: dict[int, Block] = {}
        self._bound: dict[ir.Value, Buffer] = {}
        self._compute: Callable[[Sequence[Buffer]], None] | None = None

    # ---------------------------------------------------------------- values

    def buffer_of(self, value: ir.Value) -> Buffer:
        """The buffer of a constant value; at first touch a view of the model's bytes, no copy."""
        buffer = self._bound.get(value)
        if buffer is None:
            if value.const_value is None:
                raise KeyError(f"value {value.name!r} is not constant")
            buffer = self.bind(value, self.wrap(value.const_value))
        return buffer

    def is_bound(self, value: ir.Value) -> bool:
        """True if the value has a buffer."""
        return value in self._bound

    def bind(self, value: ir.Value, buffer: Buffer) -> Buffer:
        """The value is now that buffer (which is retained once on its behalf)."""
        self.retain(buffer)
        self._bound[value] = buffer
        return buffer

    def unbind(self, value: ir.Value) -> None:
        """The value's last use is gone."""
        buffer = self._bound.pop(value, None)
        if buffer is not None:
            self.release(buffer)

    def bound(self) -> Iterable[tuple[ir.Value, Buffer]]:
        """All values that have a buffer."""
        return self._bound.items()

    # ---------------------------------------------------------------- making buffers

    def wrap(self, tensor: ir.TensorProtocol) -> Buffer:
        """A buffer on the bytes of a tensor of the model: mapped where they are in a file."""
        span = storage.span_of(tensor)
        dtype = tensor.dtype
        if span is not None and dtype.bitwidth >= 8:
            raw = span.file.array()[span.offset : span.offset + span.length]
            array = raw.view(dtype.numpy()).reshape(tensor.shape.numpy())
            buffer = self._make(array, dtype, Memory.MAPPED)
            if buffer.block is not None:
                buffer.block.file = span.file
            return buffer
        array = np.asarray(tensor.numpy())
        return self._make(array, dtype, Memory.FOREIGN)

    def allocate(self, shape: tuple[int, ...], dtype: ir.DataType) -> tuple[Array, Buffer]:
        """Room for a result: a writable array and the buffer that will present it (read-only)."""
        array = np.empty(shape, dtype.numpy())
        return array, self._make(array, dtype, Memory.OWNED)

    def adopt(self, array: Array, dtype: ir.DataType) -> Buffer:
        """A buffer for a kernel's result: a view if it looks at memory of the pool, else owned."""
        return self._make(array, dtype, Memory.OWNED)

    def defer(self, shape: tuple[int, ...], dtype: ir.DataType, deferred: Deferred) -> Buffer:
        """A buffer whose elements are computed when somebody needs them.

        The operands of ``deferred`` are retained with its first result, until all its results are
        computed or freed.
        """
        buffer = Buffer(self, shape, dtype, None, None, deferred)
        if deferred.outstanding == 0:
            for operand in deferred.operands:
                if operand is not None:
                    self.retain(operand)
        deferred.outstanding += 1
        self.statistics.created += 1
        self.statistics.deferred += 1
        return buffer

    def fulfil(self, buffer: Buffer, array: Array) -> None:
        """Give a deferred buffer its elements.

        Raises:
            ValueError: they do not have the promised shape and dtype.
        """
        if tuple(array.shape) != buffer.shape:
            raise ValueError(f"expected shape {list(buffer.shape)}, got {list(array.shape)}")
        if buffer.dtype != ir.DataType.STRING and array.dtype != buffer.dtype.numpy():
            raise ValueError(f"expected {buffer.dtype.name}, got {array.dtype}")
        deferred, buffer.deferred = buffer.deferred, None
        self._attach(buffer, array, Memory.OWNED)
        if deferred is not None:
            for operand in _settle(deferred):
                self.discard(operand)

    def _make(self, array: Array, dtype: ir.DataType, kind: Memory) -> Buffer:
        buffer = Buffer(self, array.shape, dtype, None, None)
        self.statistics.created += 1
        self._attach(buffer, array, kind)
        return buffer

    def _attach(self, buffer: Buffer, array: Array, kind: Memory) -> None:
        root: Any = root_of(array)
        block = self._blocks.get(id(root))
        if block is None:
            nbytes = root.nbytes if kind is Memory.OWNED else 0
            block = self._blocks[id(root)] = Block(root, nbytes, kind)
            if nbytes:
                statistics = self.statistics
                statistics.live_bytes += nbytes
                statistics.peak_bytes = max(statistics.peak_bytes, statistics.live_bytes)
        else:
            self.statistics.views += 1
        block.buffers.add(buffer)
        buffer.block = block
        buffer.replace_array(_read_only(array))
        if self.memory_limit is not None and self.statistics.live_bytes > self.memory_limit:
            self._spill(keep=block)

    # ---------------------------------------------------------------- references

    def retain(self, buffer: Buffer) -> None:
        """One more user of the buffer."""
        buffer.references += 1

    def release(self, buffer: Buffer) -> None:
        """One user less; the last one frees it."""
        buffer.references -= 1
        if buffer.references == 0:
            self.discard(buffer)

    def discard(self, buffer: Buffer) -> None:
        """Free a buffer that nobody retains (any more)."""
        # A chain of postponed work can be as deep as the graph: no recursion.
        pending = [buffer]
        while pending:
            current = pending.pop()
            self.statistics.freed += 1
            block, current.block = current.block, None
            current.forget_array()  # others may still know the buffer: its memory must not live on
            if block is not None:
                block.buffers.discard(current)
                if not block.buffers:
                    del self._blocks[id(block.root)]
                    if block.kind is Memory.OWNED:
                        self.statistics.live_bytes -= block.nbytes
            deferred, current.deferred = current.deferred, None
            if deferred is not None:
                pending.extend(_settle(deferred))

    # ---------------------------------------------------------------- computing

    def set_evaluator(self, compute: Callable[[Sequence[Buffer]], None]) -> None:
        """Register who computes deferred buffers."""
        self._compute = compute

    def compute(self, buffers: Sequence[Buffer]) -> None:
        """Compute the deferred ones among ``buffers``."""
        wanted = [b for b in buffers if not b.is_known]
        if wanted:
            assert self._compute is not None, "the pool has no evaluator"
            self._compute(wanted)

    # ---------------------------------------------------------------- spilling

    def _spill(self, keep: Block) -> None:
        """Move the largest owned blocks to the scratch file until the bound holds again."""
        assert self.memory_limit is not None
        owned = [b for b in self._blocks.values() if b.kind is Memory.OWNED and b is not keep]
        for block in sorted(owned, key=lambda b: -b.nbytes):
            if self.statistics.live_bytes <= self.memory_limit:
                return
            if block.nbytes < (1 << 20) or not isinstance(block.root, np.ndarray):
                return
            self._move_to_scratch(block)

    def _move_to_scratch(self, block: Block) -> None:
        old: Any = block.root
        if old.dtype.hasobject or not (old.flags.c_contiguous or old.flags.f_contiguous):
            return
        del self._blocks[id(old)]
        flat = self._scratch.store(old)
        start = old.__array_interface__["data"][0]
        for buffer in block.buffers:
            view = buffer.array()
            offset = view.__array_interface__["data"][0] - start
            buffer.replace_array(
                np.ndarray(view.shape, view.dtype, buffer=flat, offset=offset, strides=view.strides)
            )
        block.root = root_of(next(iter(block.buffers)).array())
        block.kind = Memory.SPILLED
        self._blocks[id(block.root)] = block
        self.statistics.live_bytes -= block.nbytes
        self.statistics.spilled_bytes += block.nbytes


def _settle(deferred: Deferred) -> list[Buffer]:
    """One result less is outstanding; returns the operands that nobody retains any more."""
    deferred.outstanding -= 1
    if deferred.outstanding:
        return []
    unused = []
    for operand in deferred.operands:
        if operand is not None:
            operand.references -= 1
            if operand.references == 0:
                unused.append(operand)
    deferred.operands = ()
    return unused


def _read_only(array: Array) -> Array:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
