import gc
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from runtime_models import at_once, random

from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.onnx_mlir_library import DTYPES, NUMBERS, Library


@pytest.fixture
def library(model_library, counts) -> Library:
    return Library(model_library)


def test_several_outputs_of_several_types_and_dynamic_shapes(library):
    for rows in (1, 4, 1000):
        x = random(rows, 3)
        y = random(rows, 3)[::-1]
        total, larger, count = library.call("run_arithmetic", [x, y])
        assert total.dtype == np.float32 and larger.dtype == np.bool_ and count.dtype == np.int64
        assert total.tobytes() == (x + y).tobytes()
        assert np.array_equal(larger, x > y)
        assert count.shape == () and count == rows


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda d: d.name)
def test_every_type_keeps_its_bits(library, dtype):
    words = np.random.default_rng(0).integers(0, 256, 6 * dtype.itemsize).astype(np.uint8)
    if dtype.name in ("int4", "uint4", "bool"):
        words = words % 2
    x = words.view(dtype).reshape(2, 3)
    (y,) = library.call("run_echo", [x])
    assert (y.dtype, y.shape) == (dtype, (2, 3))
    assert y.tobytes() == x.tobytes()


def test_numbers_of_types_equal_those_of_the_api():
    numbers = {d.name: n for n, d in DTYPES.items()}
    same = {"float32": "FLOAT", "float64": "DOUBLE", "float8_e4m3fn": "FLOAT8E4M3FN"}
    same |= {"float8_e4m3fnuz": "FLOAT8E4M3FNUZ", "float8_e5m2": "FLOAT8E5M2"}
    own = {"uint4": 20, "int4": 21}  # ONNX has 21 and 22
    assert numbers == own | {
        name: onnx.TensorProto.DataType.Value(same.get(name, name.upper()))
        for name in numbers.keys() - own.keys()
    }
    assert sorted(numbers.values()) == [n for n in range(1, 22) if n != 8]  # 8 is for strings
    assert len(NUMBERS) == len(DTYPES)


def test_outputs_are_not_copied_and_are_freed_with_the_last_view(library, counts):
    x = random(50, 3)
    outputs = library.call("run_arithmetic", [x, x])
    assert not outputs[0].flags.owndata and outputs[0].flags.writeable
    part = outputs[0][10:, 1]
    assert counts.alive() == (3, 1, 3, 0)
    del outputs, library
    gc.collect()
    assert counts.alive() == (3, 1, 3, 0)
    assert np.array_equal(part, (x + x)[10:, 1])
    del part
    assert counts.alive() == (0, 0, 0, 0)


def test_inputs_are_not_copied_and_belong_to_the_caller(library, counts):
    x = random(2, 3)
    before = x.copy()
    (y,) = library.call("run_argument", [x])
    assert np.array_equal(y, x) and y.flags.owndata  # the memory of an input belongs to the caller
    assert counts["buffers"] == 0
    (y,) = library.call("run_claimed", [x])
    assert np.array_equal(y, before) and y.flags.owndata
    assert counts["wrong_frees"] == 0


def test_inputs_need_not_be_contiguous(library):
    x = random(3, 4).T
    (y,) = library.call("run_echo", [x])
    assert np.array_equal(y, x)
    (y,) = library.call("run_echo", [random(8, 6)[::2, ::3]])
    assert np.array_equal(y, random(8, 6)[::2, ::3])


def test_memory_that_two_outputs_own_is_freed_once(library, counts):
    x = random(4, 5)
    first, second = library.call("run_twins", [x])
    assert np.array_equal(first, x) and np.array_equal(second, x.ravel())
    assert np.shares_memory(first, second)
    del first
    assert np.array_equal(second, x.ravel())
    del second
    assert counts.alive() == (0, 0, 0, 0)


def test_memory_of_the_library_is_copied(library):
    (first,) = library.call("run_constant", [])
    first[...] = 0
    (second,) = library.call("run_constant", [])
    assert second.tolist() == [[1, 2], [3, 4]]


def test_outputs_may_have_offsets_and_strides(library):
    assert library.call("run_aligned", [])[0].tolist() == [7, 8, 9]
    x = random(3, 4)
    (y,) = library.call("run_columns", [x])
    assert np.array_equal(y, x.ravel().reshape(4, 3).T)


def test_empty_tensors(library):
    (y,) = library.call("run_empty", [])
    assert y.shape == (0, 3) and y.dtype == np.float32
    (y,) = library.call("run_echo", [np.zeros((0, 2), np.int64)])
    assert y.shape == (0, 2)


@pytest.mark.parametrize(
    ("entry", "arrays", "message"),
    [
        ("run_refusal", [random(2, 3)], r"run_refusal failed: Invalid argument \(errno 22\)"),
        ("run_silence", [random(2, 3)], "run_silence failed$"),
        ("run_riddle", [random(2, 3)], "element type 8, which NumPy does not support"),
        ("run_backwards", [random(2, 3)], "negative strides"),
        ("run_nowhere", [], "no function run_nowhere"),
    ],
)
def test_errors(library, entry, arrays, message):
    with pytest.raises(CompileError, match=message):
        library.call(entry, arrays)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_failed_allocations_leak_nothing(library, counts, at):
    counts.set("fail_at", at)
    with pytest.raises(CompileError, match="not enough memory for the inputs"):
        library.call("run_arithmetic", [random(2, 3), random(2, 3)])
    assert counts.alive() == (0, 0, 0, 0)


def test_ten_thousand_calls_leak_nothing(library, counts):
    x = random(500, 3)
    grown = []
    process = psutil.Process()
    for _ in range(5):
        before = process.memory_info().rss
        for _ in range(2_000):
            library.call("run_arithmetic", [x, x])
            library.call("run_twins", [x])
        grown.append(process.memory_info().rss - before)
    assert counts.alive() == (0, 0, 0, 0)
    # The outputs of a call take 7.5 or 6 kB. A leak in one of 70 calls adds 170 kB to every round.
    # Other threads and the allocator add memory in some rounds only.
    assert min(grown) < 100_000


def test_threads(library, counts):
    x = random(100, 3)

    def work(k: int) -> None:
        for _ in range(200):
            assert np.array_equal(library.call("run_echo", [x * k])[0], x * k)

    at_once(work, range(4))


def test_libraries_with_equal_symbols_are_independent(tagged_library):
    libraries = [Library(tagged_library(tag, k)) for k, tag in enumerate(["one", "two"])]
    for k, library in enumerate(libraries):
        entry = f"run_main_graph_{'one' if k == 0 else 'two'}"
        library.require(entry)
        assert library.call(entry, [])[0] == k
        assert library.call("run_main_graph", [])[0] == k


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="requires /proc")
def test_library_is_unloaded_with_its_last_array(tagged_library):
    library = Library(tagged_library("short", 5))
    (array,) = library.call("run_main_graph_short", [])

    def loaded() -> bool:
        return "/short.so" in Path("/proc/self/maps").read_text()

    del library
    gc.collect()
    assert loaded() and array == 5
    del array
    gc.collect()
    assert not loaded()


def test_files_that_cannot_be_loaded_are_reported(tmp_path, tagged_library):
    with pytest.raises(CompileError, match=r"missing.so: No such file"):
        Library(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("this is no library")
    with pytest.raises(CompileError, match="does not load: "):
        Library(tmp_path / "text.so")


def test_missing_symbols_are_reported_when_a_library_is_loaded(tmp_path):
    from conftest import build

    source = tmp_path / "lacking.c"
    source.write_text("float __truncsome(float); float f(float x) { return __truncsome(x); }")
    with pytest.raises(CompileError, match="undefined symbol: __truncsome"):
        Library(build(source, tmp_path / "lacking.so"))
    source.write_text("int nothing(void) { return 0; }")
    with pytest.raises(CompileError, match="no function omTensorCreate"):
        Library(build(source, tmp_path / "other.so"))
