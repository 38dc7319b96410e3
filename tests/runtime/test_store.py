"""Test `FoldCache`: eviction, and folders whose checked files all processes share."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import psutil
import pytest
from mounts import mounted
from runtime_models import bundle_of, decoder_feeds, options, original, random

from onnxfold.runtime.sessions.cache import FoldCache, Folded
from onnxfold.runtime.sessions.session import Session
from onnxfold.support.errors import UsageError
from onnxfold.support.files import end_unused_mappings
from onnxfold.support.onnxruntime_sessions import array_of, ort_value


def folded(**arrays) -> Folded:
    values = {name: ort_value(array) for name, array in arrays.items()}
    return Folded(values, sum(array.nbytes for array in arrays.values()))


def of(cache: FoldCache, key: object, **arrays) -> dict[str, np.ndarray]:
    """Return the arrays of a key in a cache.

    If the key is missing, these arrays are added. Without arrays, the test fails.
    """
    made = cache.get(key, lambda: folded(**arrays) if arrays else pytest.fail("it is there"))
    return {name: array_of(value) for name, value in made.values.items()}


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "folds"


TYPES = [
    "float16",
    "float32",
    "float64",
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.int4,
]


def test_tensors_of_all_types_are_mapped_at_multiples_of_64_bytes(folder):
    rng = np.random.default_rng(0)
    arrays = {
        f"{np.dtype(dtype).name}{shape}": np.asarray(rng.standard_normal(shape) * 9).astype(dtype)
        for dtype in TYPES
        for shape in ((3, 5), (), (0, 2), (1, 7, 1))
    }
    for _ in range(2):
        found = FoldCache(folder).get("k", lambda: folded(**arrays)).values
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            value = found[name]
            assert value.data_type() == ort_value(array).data_type() and value.data_ptr() % 64 == 0
            assert (
                value.shape() == list(array.shape) and array_of(value).tobytes() == array.tobytes()
            )
    assert {f.stat().st_mode & 0o777 for f in (folder, *kept(folder))} == {0o700}


def test_folded_tensors_are_the_initializers_of_a_model(folder):
    arrays = {"w": random(5, 7), "n": np.arange(3), "long name" * 30: random(64, 64)}
    of(FoldCache(folder), "k", **arrays)
    initializers = onnx.load(kept(folder)[0] / "folded.onnx").graph.initializer
    read = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in initializers}
    assert read.keys() == arrays.keys()
    assert all(read[name].tobytes() == array.tobytes() for name, array in arrays.items())


def test_tensors_that_a_file_cannot_contain_are_not_written(folder):
    of(FoldCache(folder), "k", text=np.array(["a", "b"]))
    of(FoldCache(folder, max_bytes=100), "k", large=random(100))
    assert not kept(folder)


def test_another_cache_finds_tensors_and_counts_hits(folder):
    one = FoldCache(folder)
    other = FoldCache(folder)
    of(one, ("k", b"\0"), w=random(9))
    assert of(other, ("k", b"\0"))["w"].tobytes() == random(9).tobytes()
    of(other, ("k", b"\0"))
    of(other, ("k", b"\1"), w=random(3))
    assert (one.statistics().hits, one.statistics().misses) == (0, 1)
    assert (other.statistics().hits, other.statistics().misses) == (2, 1)
    assert other.statistics().seconds > 0 and other.statistics().waits == 0


def test_versions_and_cpus_do_not_share_tensors(folder, monkeypatch):
    of(FoldCache(folder), "k", w=random(9))
    monkeypatch.setattr("onnxfold.runtime.sessions.cache.cpu_features", lambda: "another")
    of(FoldCache(folder), "k", w=random(9))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9")
    of(FoldCache(folder), "k", w=random(9))
    assert len(kept(folder)) == 3


def test_threads_with_several_caches_fold_once(folder):
    asked = []
    made = []

    def make():
        made.append(1)
        while len(asked) < 16:
            time.sleep(0.01)
        time.sleep(0.2)
        return folded(w=random(9))

    def ask(number):
        asked.append(number)
        return caches[number % 8].get("k", make).values["w"]

    caches = [FoldCache(folder) for _ in range(8)]
    with ThreadPoolExecutor(16) as pool:
        values = list(pool.map(ask, range(16)))
    assert len(made) == 1
    assert all(value.numpy().tobytes() == random(9).tobytes() for value in values)
    statistics = [cache.statistics() for cache in caches]
    assert sum(s.misses for s in statistics) == 1 and sum(s.hits for s in statistics) == 15
    assert sum(s.waits for s in statistics) >= 8 and max(s.seconds for s in statistics) > 0.1


@pytest.mark.parametrize("where", ["folds", None])
def test_a_fold_that_failed_can_be_repeated(tmp_path, where):
    cache = FoldCache(where and tmp_path / where)
    with pytest.raises(ValueError, match="no"):
        cache.get("k", lambda: (_ for _ in ()).throw(ValueError("no")))
    assert not list(tmp_path.rglob("*/*"))
    of(cache, "k", w=random(9))


def test_the_least_recently_used_tensors_in_memory_are_evicted_first():
    cache = FoldCache(max_bytes=120)
    for key in "abc":
        of(cache, key, w=random(10))
    of(cache, "a")
    of(cache, "d", w=random(10))
    made = cache.get("large", lambda: folded(w=random(31)))  # evicts nothing
    assert made.nbytes == 124 and cache.statistics().too_large == 1
    for key in "acd":
        of(cache, key)
    assert (cache.statistics().bytes, cache.statistics().evictions) == (120, 1)
    cache.clear()
    assert cache.statistics().bytes == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only the heap of glibc is trimmed")
def test_a_cleared_cache_gives_memory_back_to_the_system():
    cache = FoldCache()
    kept = []
    process = psutil.Process()
    for k in range(300):
        of(cache, k, w=random(512, 512))
        kept.append(bytes(10_000))  # without a trim, glibc frees only memory above the last block
    before = process.memory_info().rss
    cache.clear()
    assert before - process.memory_info().rss > 200 << 20


def test_the_folder_keeps_its_limit_and_recently_used_tensors(folder):
    for k in range(3):
        of(FoldCache(folder, max_bytes=10_000), k, w=random(500, seed=k))
        os.utime(max(kept(folder), key=lambda f: f.stat().st_ctime_ns), (k, k))
    held = FoldCache(folder, max_bytes=10_000)
    zero = of(held, 0)["w"]
    os.utime(max(kept(folder), key=lambda f: f.stat().st_mtime), (0, 0))
    of(held, 0)  # a hit in memory counts as a use of the file
    for k in range(3, 6):
        of(FoldCache(folder, max_bytes=10_000), k, w=random(500, seed=k))
        assert size(folder) <= 10_000
    of(FoldCache(folder, max_bytes=10_000), 5)
    of(FoldCache(folder, max_bytes=10_000), 0, w=random(500))
    assert zero.tobytes() == random(500).tobytes()


DAMAGES = {
    "a bit": ("folded.onnx.data", lambda b: b[:-1] + bytes([b[-1] ^ 1])),
    "cut": ("folded.onnx.data", lambda b: b[:-64]),
    "zeros": ("folded.onnx.data", lambda b: bytes(len(b))),
    "no tensors": ("folded.onnx.data", None),
    "another name": ("folded.onnx", lambda b: b.replace(b"w", b"v")),
    "another shape": ("folded.onnx", lambda b: b.replace(b"\x08\x10\x08\x10", b"\x08\x08\x08\x20")),
    "a small tensor": ("folded.onnx", lambda b: b.replace(np.float32(7).tobytes(), b"1234")),
    "another digest": ("sha256", lambda b: b"\xff" + b),
    "no digest": ("sha256", None),
    "cut model": ("folded.onnx", lambda b: b[:-9]),
    "empty": ("folded.onnx", lambda b: b""),
    "no model": ("folded.onnx", None),
}
ARRAYS = {"w": random(16, 16), "small": np.array(7, "f4")}


def damage(folder: Path, name: str, change: Callable[[bytes], bytes] | None) -> None:
    end_unused_mappings()
    file = folder / name
    content = file.read_bytes()
    file.unlink()
    if change is not None:
        assert change(content) != content
        file.write_bytes(change(content))


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_tensors_are_folded_again(folder, kind, caplog):
    of(FoldCache(folder), "k", **ARRAYS)
    (key,) = kept(folder)
    before = contents(key)
    damage(key, *DAMAGES[kind])
    assert of(FoldCache(folder), "k", **ARRAYS)["w"].tobytes() == ARRAYS["w"].tobytes()
    assert contents(key) == before and f"{key}: removed" in caplog.text


def test_a_file_in_place_of_a_folder_of_tensors_is_not_read(folder, caplog):
    of(FoldCache(folder), "k", **ARRAYS)
    (key,) = kept(folder)
    end_unused_mappings()
    key.rename(folder.parent / "elsewhere")
    key.write_bytes(b"a file")
    of(FoldCache(folder), "k", **ARRAYS)
    assert "not stored" in caplog.text


def test_a_folder_that_others_may_write_to_is_refused(folder):
    of(FoldCache(folder), "k", w=random(16))
    os.chmod(folder, 0o770)
    with pytest.raises(UsageError, match="other users can write to it"):
        FoldCache(folder)
    os.chmod(folder, 0o755)
    of(FoldCache(folder), "k")
    if not os.geteuid():
        os.chown(folder, 12345, -1)
        with pytest.raises(UsageError, match="belongs to another user"):
            FoldCache(folder)


def test_files_of_dead_processes_are_removed_or_replaced(folder):
    code = """if True:
        import os, sys
        from onnxfold import FoldCache
        FoldCache(sys.argv[1]).get(sys.argv[2], lambda: os.kill(os.getpid(), 9))
    """
    for key in "kl":
        subprocess.run([sys.executable, "-c", code, str(folder), key])
    (left,) = folder.iterdir()  # the second process has removed the files of the first
    assert left.name.startswith(".")
    of(FoldCache(folder), "l", w=random(9))
    assert list(folder.iterdir()) == kept(folder) and len(kept(folder)) == 1


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=64k", "tmpfs")


def test_each_process_folds_if_the_disk_is_full(disk, caplog):
    of(FoldCache(disk / "folds"), "small", w=random(9))
    for _ in range(2):
        found = of(FoldCache(disk / "folds"), "k", w=random(32, 1024))
        assert found["w"].tobytes() == random(32, 1024).tobytes()
    assert "No space left" in caplog.text and len(os.listdir(disk / "folds")) == 1
    of(FoldCache(disk / "folds"), "small")


def test_sessions_share_a_folder_bit_for_bit(decoder, tmp_path):
    bundle = bundle_of(decoder, tmp_path / "b", "states", "mask")
    for k in range(3):
        session = Session(bundle, options(), cache=FoldCache(tmp_path / "folds"))
        for seed in range(2):
            feeds = decoder_feeds(seed)
            (got,) = session.run(None, feeds)
            assert got.tobytes() == original(decoder, feeds)[0].tobytes()
        assert session.fold_statistics().folds == (0 if k else session.cache_statistics().misses)
        mapped = session.fold(dict(list(decoder_feeds(1).items())[1:])).tensors()
        large = [value for value in mapped.values() if value.tensor_size_in_bytes() >= 1024]
        assert large
        addresses = [value.data_ptr() for value in large]
        with open("/proc/self/maps", encoding="utf-8") as lines:
            own = [line for line in lines if str(tmp_path / "folds") in line]
        places = [[int(p, 16) for p in line.split()[0].split("-")] for line in own]
        assert all(any(a <= address < b for a, b in places) for address in addresses)
