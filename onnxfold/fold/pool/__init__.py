"""The pool of buffers of constant values, and the tensors and blocks that read the buffers."""

from onnxfold.fold.pool.buffer import Buffer, Deferred, Memory
from onnxfold.fold.pool.pool import Pool, Watch
from onnxfold.fold.pool.tensor import BufferTensor

__all__ = ["Buffer", "BufferTensor", "Deferred", "Memory", "Pool", "Watch"]
