from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.fold.evaluator import Evaluator
from onnxfold.fold.operation import Operation
from onnxfold.fold.pool import Buffer, Pool

OPSET = 21


class Bench:
    """Applies ops to buffers of one pool; every operand and result is retained by the test."""

    def __init__(self, **options: Any) -> None:
        self.pool = Pool(**options)
        self.evaluator = Evaluator(self.pool)

    def held(self, array: np.ndarray, dtype: ir.DataType | None = None) -> Buffer:
        """A buffer with the array's elements in memory of the pool, retained once."""
        dtype = dtype or ir.DataType.from_numpy(array.dtype)
        buffer = self.pool.adopt(np.array(array), dtype)
        self.pool.retain(buffer)
        return buffer

    def integers(self, *values: int) -> Buffer:
        return self.held(np.array(values, np.int64))

    def apply(self, op_type: str, *operands: Buffer | None, n: int = 1, **attributes: Any):
        """The op's results, each retained once; a single one by itself."""
        node = ir.node(op_type, [None] * len(operands), attributes, num_outputs=n)
        for k, output in enumerate(node.outputs):
            output.name = f"out{k}"
        results = self.evaluator.apply(Operation(node, operands, {"": OPSET}))
        for result in results:
            if result is not None:
                self.pool.retain(result)
        return results[0] if n == 1 else results

    def backwards(self, x: Buffer, *steps: int) -> Buffer:
        """A view of the first axes from the last element on, with these steps."""
        axes = range(len(steps))
        sizes = [-1 for _ in axes], [-(2**62) for _ in axes], axes, [-step for step in steps]
        lists = [self.integers(*each) for each in sizes]
        result = self.apply("Slice", x, *lists)
        self.release(*lists)
        return result

    def release(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            self.pool.release(buffer)

    @property
    def live_bytes(self) -> int:
        return self.pool.statistics.live_bytes


def counting(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """0, 1, 2, ... in a shape: no two elements alike."""
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
