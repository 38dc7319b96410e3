"""Array buffers for constant values: views, reference counts, spilling, writing in tiles."""

from onnxfold.pool.buffer import Buffer, Deferred, Memory
from onnxfold.pool.pool import Pool, Watch
from onnxfold.pool.tensor import BufferTensor

__all__ = ["Buffer", "BufferTensor", "Deferred", "Memory", "Pool", "Watch"]
