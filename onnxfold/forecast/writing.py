"""Writing the result, played through: which tensors are copied, moved or computed, and in what."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import onnx_ir as ir

from onnxfold import storage
from onnxfold.forecast.computing import Computing, Streamed
from onnxfold.graphs import all_graphs
from onnxfold.kernels.streams.sources import KEPT_BYTES
from onnxfold.pool import Buffer, Memory, Pool
from onnxfold.pool.source import WORKING_BYTES, is_across
from onnxfold.pool.tensor import LARGE, SLAB, slab_bytes
from onnxfold.pool.tiles import is_transposed_matrix
from onnxfold.storage.layout import EXTERNAL_FROM
from onnxfold.storage.writer import TILE

WRITERS = 2
"""Threads that save uses."""


class Writing:
    """Bytes of a save played through.

    Args:
        computing: What is computed before and on the way.
        share_weights: Whether unchanged weights stay where they are.
    """

    def __init__(self, computing: Computing, *, share_weights: bool) -> None:
        self._computing = computing
        self._share = share_weights
        self.read = 0
        """Bytes of tensors copied from file to file or read in another order."""
        self.written = 0
        """Bytes of tensors in the files written."""
        self.came = 0
        """Bytes of the tensors that came with the model, without the small ones."""
        self.nodes = 0
        self.constants = 0
        """Nodes of the model, and those of them that hold a constant."""
        self.peak = 0
        """Most bytes in memory at once, besides what is held."""

    def stored(self, values: Iterable[ir.Value], pool: Pool) -> None:
        """Results of constant propagation."""
        for value in values:
            self._buffer(pool.buffer_of(value))

    def unchanged(self, model: ir.Model, removed: Collection[ir.Node]) -> None:
        """Tensors that came with the model and that nodes which stay still read."""
        for graph in all_graphs(model):
            self.nodes += len(graph)
            for value in graph.initializers.values():
                self._unchanged(value, removed)
            for node in graph:
                if node.op_type == "Constant":
                    self.constants += 1
                    self._unchanged(node.outputs[0], removed)

    def _unchanged(self, value: ir.Value, removed: Collection[ir.Node]) -> None:
        tensor = value.const_value
        # what loading left in the protobuf message is small
        if tensor is None or isinstance(tensor, ir.TensorProtoTensor):
            return
        nbytes = storage.data_bytes(tensor.dtype, tensor.shape)
        self.came += nbytes
        if not _is_read(value, removed):
            return
        if not self._share or nbytes < EXTERNAL_FROM or storage.span_of(tensor) is None:
            self.written += nbytes
            self.read += nbytes

    def _buffer(self, buffer: Buffer) -> None:
        nbytes = buffer.nbytes
        self.written += nbytes
        computing = self._computing
        if not buffer.is_known:
            streamed = computing.stream(buffer)
            self._note(WRITERS * TILE if streamed is None else _of_tiles(buffer, streamed))
        elif buffer.span() is not None:
            self.read += nbytes
        elif buffer.block is not None and buffer.block.kind is Memory.MAPPED:
            array = buffer.array()
            if array.nbytes > LARGE and is_transposed_matrix(array):
                # what is read in a slab and the slab itself
                self._note(WRITERS * 2 * max(SLAB, _least_slab(array.shape[0])))
            else:
                # its pages are given back when it is written
                self._note(min(array.nbytes, _memory_behind(array)) + WRITERS * TILE)
            self.read += nbytes
        else:
            self._note(WRITERS * TILE)

    def _note(self, nbytes: int) -> None:
        self.peak = max(self.peak, nbytes)


def _of_tiles(buffer: Buffer, streamed: Streamed) -> int:
    """Bytes that the threads need for the tiles of a result, and pages that these have touched."""
    read, source = streamed
    slab = SLAB if buffer.nbytes > LARGE else 0
    pages = min(read, KEPT_BYTES)
    if source is not None:
        slab = slab_bytes(source, buffer.nbytes, TILE, buffer.pool.memory_limit)
        slab = max(slab, source.least_tile)
        if is_across(source) and not slab:
            pages = read
    return WRITERS * (max(TILE, slab) + WORKING_BYTES) + pages


def _least_slab(rows: int) -> int:
    return rows * 2048


def _memory_behind(array: object) -> int:
    """Bytes between the first and the last element of a view."""
    shape, strides = array.shape, array.strides  # type: ignore[attr-defined]
    if not math.prod(shape):
        return 0
    return int(sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True)))


def _is_read(value: ir.Value, removed: Collection[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in removed for use in value.uses())
