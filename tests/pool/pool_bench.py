from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.fold.evaluator import Evaluator
from onnxfold.fold.operation import Operation
from onnxfold.fold.pool import Buffer, Pool

OPSET = 21


class Bench:
    """Applies ops to buffers of one pool.

    Every operand and result is retained once, until the test calls `release`.
    """

    def __init__(self, **options: Any) -> None:
        self.pool = Pool(**options)
        self.evaluator = Evaluator(self.pool)

    def held(self, array: np.ndarray, dtype: ir.DataType | None = None) -> Buffer:
        """Return a buffer with the elements of the array in the pool's memory, retained once."""
        dtype = dtype or ir.DataType.from_numpy(array.dtype)
        buffer = self.pool.adopt(np.array(array), dtype)
        self.pool.retain(buffer)
        return buffer

    def integers(self, *values: int) -> Buffer:
        return self.held(np.array(values, np.int64))

    def apply(self, op_type: str, *operands: Buffer | None, n: int = 1, **attributes: Any):
        """Return the result of an op with one output, or the list of ``n`` results.

        Each result is retained once.
        """
        node = ir.node(op_type, [None] * len(operands), attributes, num_outputs=n)
        for k, output in enumerate(node.outputs):
            output.name = f"out{k}"
        results = self.evaluator.apply(Operation(node, operands, {"": OPSET}))
        for result in results:
            if result is not None:
                self.pool.retain(result)
        return results[0] if n == 1 else results

    def backwards(self, x: Buffer, *steps: int) -> Buffer:
        """Return a view with reversed first axes. ``steps`` has a positive step for each axis."""
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
    """Return an array of the numbers 0, 1, 2, ...; all elements are different."""
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
