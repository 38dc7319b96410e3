"""Large transposed matrices are written in slabs, and their pages given back."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfold
from onnxfold.pool.tiles import is_transposed_matrix, slabs_of, tiles_of


@pytest.mark.parametrize("dtype", [np.int8, np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 5000), (3000, 700), (2049, 1025)])
def test_slabs_cover_what_tiles_cover(shape, dtype):
    array = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype).T
    out = np.zeros(array.nbytes, np.uint8)
    released = []
    for tile in slabs_of(array, 1 << 18, lambda part: released.append(part.shape)):
        scratch = np.empty(tile.nbytes, np.uint8)
        tile.read(scratch)
        row = tile.nbytes // tile.rows
        for k in range(tile.rows):
            start = tile.offset + k * tile.pitch
            out[start : start + row] = scratch[k * row : (k + 1) * row]
    want = np.zeros(array.nbytes, np.uint8)
    for tile in tiles_of(array, ir.DataType.from_numpy(array.dtype), 1 << 16):
        tile.read(want[tile.offset : tile.offset + tile.nbytes])
    assert out.tobytes() == want.tobytes()
    assert sum(columns for _, columns in released) == array.shape[1]


def test_only_transposed_matrices_are():
    matrix = np.zeros((6, 7), np.float32)
    assert is_transposed_matrix(matrix.T)
    for other in (
        matrix,
        matrix.T[::-1],
        matrix[:, ::2],
        matrix.reshape(2, 3, 7).transpose(2, 0, 1),
    ):
        assert not is_transposed_matrix(other)
    assert not is_transposed_matrix(np.broadcast_to(matrix[:, :1], (6, 7)).T)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_matrix_larger_than_the_slabs_does_not_stay_in_memory(tmp_path):
    """288 MiB through Transpose: what is resident is a few slabs of it."""
    weight = np.random.default_rng(0).standard_normal((9216, 8192), dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8192])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 9216])],
        [numpy_helper.from_array(weight, "w")],
    )
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(helper.make_model(graph, ir_version=8), source)
    peak = _peak_growth(source, target)
    folded = onnxfold.load(target).graph.initializers["t"].const_value.numpy()
    assert np.array_equal(folded[:, ::97], weight.T[:, ::97])
    assert peak < 150 << 20


def _peak_growth(source, target) -> int:
    import subprocess

    code = (
        "import sys, onnxfold; from onnxfold.memory import peak_rss_bytes as peak;"
        "import onnxfold.api, onnxfold.passes.pipeline, onnxfold.kernels; before = peak();"
        "onnxfold.optimize_file(sys.argv[1], sys.argv[2], level=0, fsync=False);"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", code, str(source), str(target)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
