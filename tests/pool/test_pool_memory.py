"""Test upper bounds of the memory of processes that fold, and of the statistics of the pool."""

import json
import sys

import numpy as np
import onnx
import pytest
from model_table import ROOT, parse, with_weights
from processes import python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20
RUN = """
import json, sys, onnxfold
from onnxfold.support.system import peak_rss_bytes as peak
import onnxruntime, onnxfold.passes.pipeline, onnxfold.fold, onnxfold.api.optimize
before = peak()
options = json.loads(sys.argv[3])
report = onnxfold.optimize_file(sys.argv[1], sys.argv[2], level=0, fsync=False, **options)
print(json.dumps({"growth": peak() - before, "pool": report.to_dict()["pool"]}))
"""


def grown(source, target, **options) -> tuple[int, dict]:
    """Optimize a model in a new process.

    Returns:
        The growth of the peak memory of the process in bytes, and the statistics of its pool.
    """
    record = json.loads(python("-c", RUN, source, target, json.dumps(options)))
    return record["growth"], record["pool"]


def saved(path, text: str, **weights: np.ndarray) -> None:
    """Save a model with all weights in external data."""
    model = with_weights(parse(text, 18), **weights)
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)


def tensors(path) -> dict[str, np.ndarray]:
    model = onnx.load(path)
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize(
    ("op_types", "held", "sessions"),
    [(("Neg", "Abs"), 1, 0), pytest.param(("Tanh", "Exp", "Neg"), 2, 3, marks=pytest.mark.slow)],
)
def test_forty_ops_and_a_mean(tmp_path, op_types, held, sessions):
    """The weight has 64 MiB. A reduction, Tanh and Exp read a whole operand."""
    nodes = " ".join(f"v{k + 1} = {op_types[k % len(op_types)]}(v{k})" for k in range(40))
    weight = np.random.default_rng(0).standard_normal((4096, 4096), np.float32)
    text = f"g () => (float mean) {{ {nodes} mean = ReduceMean<keepdims = 0>(v40) }}"
    saved(tmp_path / "in.onnx", text, v0=weight)
    growth, pool = grown(tmp_path / "in.onnx", tmp_path / "out.onnx", fold_all=True)
    assert pool["peak_bytes"] < held * 64 * MIB + 16 * MIB
    assert growth < pool["peak_bytes"] + sessions * 64 * MIB + 48 * MIB


def test_a_fold_larger_than_the_limit(tmp_path):
    """With a limit of 32 MiB, the result of a Cast and a Transpose is written directly to the file.

    The weight has 256 MiB.
    """
    text = "g () => (float16[4096, 16384] y) { c = Cast<to = 10>(w) y = Transpose(c) }"
    weight = np.random.default_rng(0).standard_normal((16384, 4096), np.float32)
    saved(tmp_path / "in.onnx", text, w=weight)
    growth, pool = grown(tmp_path / "in.onnx", tmp_path / "out.onnx", memory_limit=32 * MIB)
    assert growth < 112 * MIB  # two slabs of the result, and the data that is read for them
    assert pool["peak_bytes"] <= 96 * MIB
    assert pool["spilled_bytes"] == 0
    folded = tensors(tmp_path / "out.onnx")["y"]
    np.testing.assert_array_equal(folded[:, ::97], weight.T.astype(np.float16)[:, ::97])


def test_results_with_two_consumers_are_spilled(tmp_path):
    """The model has four Floor results of 32 MiB with two consumers each; the limit is 48 MiB."""
    nodes = []
    weights = {}
    outputs = []
    for k in range(4):
        weights[f"w{k}"] = np.random.default_rng(k).standard_normal((4096, 2048), np.float32)
        nodes.append(f"c{k} = Floor(w{k}) a{k} = Transpose(c{k}) b{k} = Neg(c{k})")
        outputs.append(f"float[2048, 4096] a{k}, float[4096, 2048] b{k}")
    text = f"g () => ({', '.join(outputs)}) {{ {' '.join(nodes)} }}"
    saved(tmp_path / "in.onnx", text, **weights)
    growth, pool = grown(
        tmp_path / "in.onnx", tmp_path / "out.onnx", memory_limit=48 * MIB, fold_all=True
    )
    assert growth < 160 * MIB
    assert pool["spilled_bytes"] == 4 * 32 * MIB
    assert pool["peak_bytes"] <= 96 * MIB
    folded = tensors(tmp_path / "out.onnx")
    for k in range(4):
        floor = np.floor(weights[f"w{k}"])
        np.testing.assert_array_equal(folded[f"a{k}"], floor.T)
        np.testing.assert_array_equal(folded[f"b{k}"], -floor)


@pytest.mark.parametrize("limit", [None, 16 * MIB])
def test_repeated_elements_take_no_memory(tmp_path, limit):
    """The model slices a tensor of 1 GiB and reads the shape of a tensor of 4 TiB."""
    text = """g () => (float[2, 2] part, int64[2] shape)
    <float one = {2.5}, int64[2] square = {16384, 16384}, int64[2] from = {0, 0},
     int64[2] to = {2, 2}, int64[2] axes = {0, 1}, int64[2] huge = {1048576, 1048576}> {
        t = Expand(one, square) part = Slice(t, from, to, axes)
        z = ConstantOfShape(huge) shape = Shape(z) }"""
    saved(tmp_path / "in.onnx", text)
    growth, pool = grown(tmp_path / "in.onnx", tmp_path / "out.onnx", memory_limit=limit)
    assert growth < 12 * MIB
    assert pool["peak_bytes"] < 4096
    folded = tensors(tmp_path / "out.onnx")
    np.testing.assert_array_equal(folded["part"], np.full((2, 2), 2.5, np.float32))
    np.testing.assert_array_equal(folded["shape"], [1 << 20, 1 << 20])


MAKE = """
from pathlib import Path
import numpy as np
from tests.benchmarks.benchmark_models import transformer
size = int(sys.argv[2])
transformer(Path(sys.argv[1]), size, size, 2, size, np.float32)
"""
# A small model is optimized first, so that imports and one-time allocations are not counted.
OPTIMIZE = """
import gc, onnxfold
from onnxfold.support.system import peak_rss_bytes as peak
small, large, result = sys.argv[1:]
gc.disable()
for _ in range(3): onnxfold.optimize_file(small, result)
start = peak()
onnxfold.optimize_file(large, result)
print((peak() - start) / 2**20)
"""


def run(code: str, *arguments) -> str:
    return python("-c", "import sys\n" + code, *arguments, cwd=ROOT)


def test_transposed_weights_are_folded_in_little_memory(tmp_path) -> None:
    """The model has 16 matrices of 16 MiB.

    If a system maps 2 MiB at once, reading one element of each matrix takes 32 MiB.
    """
    small = tmp_path / "small.onnx"
    large = tmp_path / "large.onnx"
    run(MAKE, small, 8)
    run(MAKE, large, 2048)
    grown = float(run(OPTIMIZE, small, large, tmp_path / "out.onnx"))
    assert grown < 35, grown


def test_results_are_freed_at_the_end_of_their_run(tmp_path) -> None:
    """In each run, onnxruntime computes two results of 32 MiB, one of them in a branch.

    The process optimizes the model four times with a disabled garbage collector.
    """
    model = tmp_path / "in.onnx"
    weight = np.ones((2048, 4096), np.float32)
    text = "then_branch = t () => (b) { e = Exp(v) b = Add(x, e) }, else_branch = f () => (x) { }"
    text = f"g (bool c, float x) => (y, float[2048, 4096] z) {{ z = Exp(w) y = If<{text}>(c) }}"
    saved(model, text, v=weight, w=weight + 1)
    grown = float(run(OPTIMIZE, model, model, tmp_path / "out.onnx"))
    assert grown < 20, grown
