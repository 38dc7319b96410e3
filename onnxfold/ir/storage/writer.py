"""Writing of planned files. Their tensors are computed in tiles, or are in files or memory."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.ir.storage.layout import FilePlan
from onnxfold.ir.storage.tensors import Span, is_streamed, span_of
from onnxfold.support import forks, system
from onnxfold.support.parallel import for_each

# Approximate bytes of a tile, and maximum bytes of one read call. A tile fits into the second-level
# cache of a core.
TILE = 1 << 20
# Tensors with fewer bytes are not computed in tiles if their elements are known (``is_known``).
_STREAMED_FROM = 1 << 16
# Maximum bytes of one write call. For longer calls, the system allocates memory in pieces of 2 MiB,
# and clears each piece or fetches it from the host at once. This takes four times the system time
# on ext4.
_WRITE = 1 << 20
# Maximum bytes of one copy call and of one part in `Writer.write`. Ctrl-C and progress are handled
# after each call or part.
_COPY = 64 << 20
# After a tensor of at least this many bytes, `write_plan` starts a sync in the background if it has
# an executor.
_SYNCED_FROM = 16 << 20


@dataclass(frozen=True)
class Tile:
    """A part of a tensor's stored bytes (little-endian, sub-byte types packed).

    A tile has one or more segments of the same length.

    Attributes:
        offset: The start of the first segment in the tensor, in bytes.
        nbytes: The length of all segments together, in bytes.
        read: Fills a contiguous uint8 array of exactly ``nbytes`` bytes. The array is reused
            afterwards. Several threads call it concurrently for different tiles, so it should
            release the GIL.
        rows: The number of segments.
        pitch: The distance between the starts of two segments in the tensor, in bytes; unused for a
            single segment.
    """

    offset: int
    nbytes: int
    read: Callable[[npt.NDArray[np.uint8]], None]
    rows: int = 1
    pitch: int = 0


def write_tiles(
    tiles: Iterable[Tile],
    put: Callable[[memoryview, int], object],
    threads: int,
    after_tile: Callable[[], object] = lambda: None,
) -> None:
    """Compute tiles with up to ``threads`` threads, and write their segments with ``put``.

    Args:
        tiles: The tiles of a tensor.
        put: Called with the bytes of a segment and its offset in the tensor. Several threads may
            call it concurrently. The memory of the segment is reused afterwards.
        threads: The maximum number of threads.
        after_tile: Called in the calling thread after each tile.
    """
    local = threading.local()

    def write(tile: Tile) -> None:
        memory: npt.NDArray[np.uint8] | None = getattr(local, "memory", None)
        if memory is None or len(memory) < tile.nbytes:
            memory = np.empty(max(tile.nbytes, TILE), np.uint8)
            local.memory = memory
        tile.read(memory[: tile.nbytes])
        length = tile.nbytes // tile.rows
        for k in range(tile.rows):
            put(memory.data[k * length : (k + 1) * length], tile.offset + k * tile.pitch)

    for_each(tiles, write, threads, after_tile)


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of ``data`` into a file at ``offset``. The function is thread-safe.

    Raises:
        OSError: The file cannot be written.
    """
    while data:
        count = system.pwrite(fd, data[:_WRITE], offset)
        data = data[count:]
        offset += count


@dataclass(eq=False)
class Writer:
    """A writer of bytes and tensors to files.

    One tensor is written at a time, but several threads compute its tiles.

    Attributes:
        threads: The maximum number of threads.
        total: The number of bytes to write.
        progress: Called in the calling thread with the number of written bytes and ``total``.
        done: The number of written bytes.
    """

    threads: int
    total: int
    progress: Callable[[int, int], None] | None
    done: int = 0

    def write(self, fd: int, offset: int, data: Any) -> None:
        """Write the bytes of a one-dimensional buffer of bytes at ``offset``."""
        view: memoryview = memoryview(data)
        for start in range(0, len(view), _COPY):
            part = view[start : start + _COPY]
            write_at(fd, part, offset + start)
            self._advance(len(part))

    def write_tensor(self, fd: int, offset: int, length: int, tensor: ir.TensorProtocol) -> None:
        """Write the ``length`` stored bytes of ``tensor`` at ``offset``."""
        span = span_of(tensor)
        is_small = length < _STREAMED_FROM and getattr(tensor, "is_known", False)
        if span is not None:
            self._copy_span(fd, offset, span)
        elif is_streamed(tensor) and not is_small:
            self._write_tiles(fd, offset, length, tensor)
        else:
            self._write_elements(fd, offset, length, tensor)

    def _copy_span(self, fd: int, offset: int, span: Span) -> None:
        file, start, length = span
        with file.descriptor() as source_fd:
            if source_fd is not None:
                self.copy(fd, offset, length, source_fd, start)
                file.release(start, length)
                return
        # the mapping still has the content of the removed or replaced file
        for done in range(0, length, _COPY):
            part = file.content[start + done : start + min(length, done + _COPY)]
            self.write(fd, offset + done, part.data)
            file.release(start + done, len(part))

    def copy(self, fd: int, offset: int, length: int, source_fd: int, start: int) -> None:
        """Copy ``length`` bytes at ``start`` of ``source_fd`` to ``offset`` of ``fd``.

        Raises:
            OSError: The bytes cannot be copied, or the source is too short.
        """
        done = 0
        uses_copy_range = True
        while done < length:
            count = 0
            if uses_copy_range:
                limit = min(_COPY, length - done)
                count = system.copy_range(source_fd, fd, limit, start + done, offset + done)
                uses_copy_range = count > 0
            if not count:
                part = system.pread(source_fd, min(TILE, length - done), start + done)
                if not part:
                    raise OSError(errno.EIO, "the file with the data of a tensor was truncated")
                write_at(fd, memoryview(part), offset + done)
                count = len(part)
            done += count
            self._advance(count)

    def _write_tiles(self, fd: int, base: int, length: int, tensor: Any) -> None:
        lock = forks.Lock()
        covered = 0

        def put(data: memoryview, start: int) -> None:
            nonlocal covered
            if start < 0 or start + len(data) > length:
                raise ValueError(f"tile [{start}, {start + len(data)}) exceeds {length} bytes")
            write_at(fd, data, base + start)
            with lock:
                covered += len(data)
                self.done += len(data)

        threads = self.threads if length > TILE else 1
        write_tiles(tensor.tiles(TILE), put, threads, lambda: self._advance(0))
        if covered != length:
            raise ValueError(f"the tiles of a tensor cover {covered} of {length} bytes")

    def _write_elements(self, fd: int, offset: int, length: int, tensor: ir.TensorProtocol) -> None:
        if tensor.dtype.bitwidth >= 8:
            array = tensor.numpy()
            if array.nbytes == length and array.dtype.byteorder != ">":
                array = array.view(np.dtype(f"V{array.dtype.itemsize}"))
                self.write(fd, offset, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                return
        stored = tensor.tobytes()
        if len(stored) != length:
            raise ValueError(f"tensor {tensor.name!r} has {len(stored)} bytes, not {length}")
        self.write(fd, offset, stored)

    def _advance(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)


def write_plan(fd: int, plan: FilePlan, writer: Writer, background: Executor | None = None) -> None:
    """Write a file by its plan, and release streamed tensors.

    If ``background`` is given, it syncs the file after each large tensor while the next tensors are
    computed. The function waits for these syncs.

    Raises:
        OSError: The file cannot be written, or a sync failed.
    """
    os.ftruncate(fd, plan.size)
    for offset, literal in plan.literals:
        writer.write(fd, offset, literal)
    written: dict[int, int] = {}
    syncs: list[Future[None]] = []
    for hole in plan.tensors:
        if not hole.length:
            continue
        # a tensor with several positions is computed once, and then copied
        first_offset = written.setdefault(id(hole.tensor), hole.offset)
        if first_offset != hole.offset:
            writer.copy(fd, hole.offset, hole.length, fd, first_offset)
            continue
        try:
            writer.write_tensor(fd, hole.offset, hole.length, hole.tensor)
        finally:
            if is_streamed(hole.tensor):
                hole.tensor.release()
        if background is not None and hole.length >= _SYNCED_FROM:
            syncs.append(background.submit(system.sync_data, fd))
    for sync in syncs:
        sync.result()  # a later sync of the file does not report the error again
