"""The pool of buffers of constant values: views, reference counts, spilling, tiled writes."""

from onnxfold.fold.pool.buffer import Buffer, Deferred, Memory
from onnxfold.fold.pool.pool import Pool, Watch
from onnxfold.fold.pool.tensor import BufferTensor

__all__ = ["Buffer", "BufferTensor", "Deferred", "Memory", "Pool", "Watch"]
