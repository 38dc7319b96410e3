"""Fold DoRA adapters of a linear layer with a compiled kernel and with onnxruntime.

Needs IREE: pip install 'onnxfold[iree]'
"""

import statistics
import time

import numpy as np
import onnx
import onnx.parser

import onnxfold

WIDTH = 2048
RANK = 16
ADAPTERS = 12

TEXT = f"""<ir_version: 10, opset_import: ["": 21]>
dora (float[n, {WIDTH}] x, float[{WIDTH}, rank] a, float[rank, {WIDTH}] b,
      float[{WIDTH}] magnitude) => (float[n, {WIDTH}] y)
    <int64[1] rows = {{0}}> {{
    update = MatMul(a, b)
    merged = Add(w, update)
    squares = Mul(merged, merged)
    sums = ReduceSum(squares, rows)
    norms = Sqrt(sums)
    ratios = Div(magnitude, norms)
    weight = Mul(merged, ratios)
    y = MatMul(x, weight)
}}"""

rng = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    """Return random numbers with a shape."""
    return rng.standard_normal(shape, np.float32)


model = onnx.parser.parse_model(TEXT)
model.graph.initializer.append(onnx.numpy_helper.from_array(draw(WIDTH, WIDTH), "w"))
adapters = [
    {"a": draw(WIDTH, RANK), "b": draw(RANK, WIDTH), "magnitude": draw(WIDTH)}
    for _ in range(ADAPTERS)
]
x = draw(4, WIDTH)


def session(backend: str) -> onnxfold.Session:
    """Return a session that folds adapters and caches only the last one."""
    held = ["a", "b", "magnitude"]
    return onnxfold.Session(model, runtime_constants=held, backend=backend, max_cache_bytes=0)


def fold_seconds(folding: onnxfold.Session) -> float:
    """Return the median time of folding an adapter, in seconds."""
    seconds = []
    for adapter in adapters:
        begin = time.perf_counter()
        folding.fold(adapter)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


automatic = session("auto")
plain = session("onnxruntime")
automatic.fold(adapters[0])  # kernels are compiled for the sizes of the first fold
(placement,) = automatic.wait_for_kernels()
print("compiled by:", placement.backend)
with_kernel, without = fold_seconds(automatic), fold_seconds(plain)
print(f"an adapter takes {with_kernel * 1000:.1f} ms, by onnxruntime {without * 1000:.1f} ms")
(outputs,) = automatic.fold(adapters[1]).run(None, {"x": x})
(expected,) = plain.fold(adapters[1]).run(None, {"x": x})
print("equal within 1e-4:", np.allclose(outputs, expected, rtol=1e-4, atol=1e-4))
