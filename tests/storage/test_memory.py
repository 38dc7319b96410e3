"""Test in new processes that the peak memory does not depend on the size of the model."""

import filecmp
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from processes import python
from storage_models import parsed

PRELUDE = """
import sys, numpy as np, onnx_ir as ir
from onnxfold.ir import storage
from onnxfold.support.system import peak_rss_bytes
def peak(): return peak_rss_bytes() / 2**20
"""


def big_model(path, mebibytes: int, *, count: int) -> None:
    """Write a model of ``mebibytes`` MiB with ``count`` tensors, which have equal random bytes."""
    rows = mebibytes * (1 << 20) // count // 4096
    chunk = np.random.default_rng(0).bytes(rows * 4096)
    tensors = [
        TensorProto(name=f"w{i}", data_type=1, dims=[rows, 1024], raw_data=chunk)
        for i in range(count)
    ]
    graph = f"g () => (float[{rows}, 1024] y) {{ y = Identity(w0) }}"
    model = parsed('<ir_version: 10, opset_import: ["" : 17]>' + graph)
    model.graph.initializer.extend(tensors)
    path.write_bytes(model.SerializeToString())


def peaks(code: str, *args) -> list[float]:
    return [float(word) for word in python("-c", PRELUDE + code, *args).split()]


@pytest.fixture(scope="module")
def source(request, tmp_path_factory):
    """Return the path of a model of 160 MiB with the requested number of tensors."""
    path = tmp_path_factory.mktemp("source") / "m.onnx"
    big_model(path, 160, count=request.param)
    yield path
    path.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("source", "external"), [(8, False), (8, True), (2560, False)], indirect=["source"]
)
def test_load_and_save_in_constant_memory(tmp_path, source, external: bool) -> None:
    code = """
start = peak()
model = storage.load(sys.argv[1])
loaded = peak()
storage.save(model, sys.argv[2], external_data=sys.argv[3] == "True", fsync=False)
print(start, loaded, peak())
"""
    start, loaded, saved = peaks(code, source, tmp_path / "o.onnx", external)
    assert loaded - start < 40 and saved - start < 60, (start, loaded, saved)
    if not external:
        assert filecmp.cmp(source, tmp_path / "o.onnx", shallow=False)
    for file in tmp_path.iterdir():
        file.unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_streamed_results_in_constant_memory(tmp_path) -> None:
    code = """
def read(out): out[:] = 7
class Streamed(ir.LazyTensor):
    def tiles(self, nbytes):
        for offset in range(0, self.nbytes, nbytes):
            yield storage.Tile(offset, min(nbytes, self.nbytes - offset), read)
    def release(self): pass
s = Streamed(None, ir.DataType.UINT8, ir.Shape([200 << 20]))
graph = ir.Graph([], [], nodes=[], name="g", opset_imports={"": 17},
                 initializers=[ir.Value(name="s", const_value=s)])
model = ir.Model(graph, ir_version=10)
start = peak()
storage.save(model, sys.argv[1], fsync=False)
print(start, peak())
"""
    start, saved = peaks(code, tmp_path / "o.onnx")
    assert saved - start < 20, (start, saved)
    loaded = onnx.load(tmp_path / "o.onnx").graph.initializer[0]
    assert len(loaded.raw_data) == 200 << 20 and loaded.raw_data[-1] == 7


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_pages_are_removed_from_memory(tmp_path) -> None:
    big_model(tmp_path / "m.onnx", 128, count=32)
    code = """
model = storage.load(sys.argv[1])
start = peak()
total = 0.0
for value in model.graph.initializers.values():
    total += float(value.const_value.raw.sum(dtype=np.uint64))
    span = storage.span_of(value.const_value)
    span.file.release(span.offset, span.length)
print(start, peak())
"""
    start, after = peaks(code, tmp_path / "m.onnx")
    assert after - start < 32, (start, after)
