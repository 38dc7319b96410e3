"""Test that the kernel cache returns only complete kernels, and keeps its size limit."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from onnxfold.runtime.backends import compilation
from onnxfold.runtime.backends.compilation import hashes_of
from onnxfold.runtime.bundles.manifest import Kernel, TensorInfo


def made(folder: Path, name: str, size: int = 20_000, seed: int = 0) -> Kernel:
    files = [f"kernels/{name}.so", f"kernels/{name}.constants.bin"]
    rng = np.random.default_rng(seed)
    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).write_bytes(rng.bytes(size // 2))
    return Kernel(
        "mine",
        [f"y{seed}"],
        inputs=["x"],
        file=files[0],
        beside=files[1:],
        key={"maker": f"maker {seed}"},
        hashes=hashes_of(files, folder),
        takes=[TensorInfo("x", "float", ["n", 3])],
    )


NAMES = [compilation.kernel_name({"k": str(k)}) for k in range(5)]
NAME = NAMES[0]


def kept_files() -> list[str]:
    return sorted(path.name for path in compilation.kernel_folder().iterdir())


def is_whole(kernel: Kernel, folder: Path) -> bool:
    return hashes_of(kernel.files, folder) == kernel.hashes


def test_a_kernel_is_read_as_it_was_written(tmp_path):
    kernel = made(tmp_path / "made", NAME)
    assert compilation.take_kernel(NAME, tmp_path / "bundle") is None
    compilation.keep_kernel(NAME, kernel, tmp_path / "made")
    assert compilation.take_kernel(NAME, tmp_path / "bundle") == kernel
    assert is_whole(kernel, tmp_path / "bundle")
    assert kept_files() == [NAME]


@pytest.mark.parametrize("damage", ["truncated", "zeroed", "flipped", "empty", "other"])
def test_a_damaged_kernel_is_not_taken_and_is_replaced(tmp_path, damage):
    kernel = made(tmp_path / "made", NAME, size=600)
    compilation.keep_kernel(NAME, kernel, tmp_path / "made")
    paths = sorted((compilation.kernel_folder() / NAME).iterdir())
    rng = np.random.default_rng(0)
    for k in range(3 if damage == "empty" else 60):
        path = paths[k % 3]
        whole = path.read_bytes()
        at = int(rng.integers(0, len(whole)))
        content = bytearray(whole)
        content[at] ^= 1 << int(rng.integers(0, 8))
        damaged = {
            "truncated": whole[:at],
            "zeroed": whole[:at] + bytes(len(whole[at : at + 512])) + whole[at + 512 :],
            "flipped": content,
            "empty": b"",
            "other": rng.bytes(len(whole)),
        }
        path.write_bytes(damaged[damage])
        found = compilation.take_kernel(NAME, tmp_path / "bundle")
        assert found is None or path.read_bytes() == whole
        compilation.keep_kernel(NAME, kernel, tmp_path / "made")
        assert compilation.take_kernel(NAME, tmp_path / "bundle") == kernel


def test_a_kernel_with_an_edited_description_is_not_taken(tmp_path, caplog):
    kernel = made(tmp_path / "made", NAME)
    compilation.keep_kernel(NAME, kernel, tmp_path / "made")
    path = compilation.kernel_folder() / NAME / "kernel.json"
    document = json.loads(path.read_text())
    document["takes"][0]["dtype"] = "double"
    path.write_text(json.dumps(document))
    caplog.set_level("INFO", "onnxfold")
    assert compilation.take_kernel(NAME, tmp_path / "bundle") is None
    assert "it was changed after it was written" in caplog.text
    assert kept_files() == []


def test_a_kernel_with_files_outside_of_the_kernel_folder_is_not_taken(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "entry.onnx").write_bytes(b"mine")
    hashes = hashes_of(["entry.onnx"], tmp_path / "made")
    kernel = Kernel("mine", ["y"], file="entry.onnx", hashes=hashes)
    compilation.keep_kernel(NAME, kernel, tmp_path / "made")
    assert compilation.take_kernel(NAME, tmp_path / "bundle") is None
    assert not (tmp_path / "bundle").exists()


def test_the_least_recently_used_kernel_is_removed_first(tmp_path, monkeypatch):
    monkeypatch.setenv("ONNXFOLD_KERNEL_CACHE_BYTES", "70000")
    for k, name in enumerate(NAMES[:3]):
        compilation.keep_kernel(name, made(tmp_path, name, seed=k), tmp_path)
        time.sleep(0.01)
    assert compilation.take_kernel(NAMES[0], tmp_path) is not None  # used again
    compilation.keep_kernel(NAMES[3], made(tmp_path, NAMES[3], seed=3), tmp_path)
    assert kept_files() == sorted([NAMES[0], NAMES[2], NAMES[3]])
    large = made(tmp_path, NAMES[4], size=80_000)
    compilation.keep_kernel(NAMES[4], large, tmp_path)  # too large for the limit
    assert len(kept_files()) == 3
    monkeypatch.setenv("ONNXFOLD_KERNEL_CACHE_BYTES", "0")
    compilation.keep_kernel(NAMES[4], large, tmp_path)
    assert len(kept_files()) == 3


def test_files_of_the_user_are_not_removed(tmp_path, monkeypatch):
    compilation.keep_kernel(NAME, made(tmp_path, NAME), tmp_path)
    (compilation.kernel_folder() / "mine.txt").write_bytes(b"a user's own")
    monkeypatch.setenv("ONNXFOLD_KERNEL_CACHE_BYTES", "22000")
    compilation.keep_kernel(NAMES[1], made(tmp_path, NAMES[1]), tmp_path)
    assert kept_files() == sorted([NAMES[1], "mine.txt"])


OWN = f"""import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_kernel_cache import *
"""


def use(own: Path, shared: Path, *, forget: bool = False) -> None:
    for k in range(60):
        name = NAMES[k % 4]
        compilation.keep_kernel(name, made(own, name, seed=k % 4), own)
        if forget and k % 7 == 0:
            compilation.forget_kernel(name)
        found = compilation.take_kernel(name, shared)
        assert found is None or is_whole(found, shared)


def test_threads_and_processes_use_the_cache_at_the_same_time(tmp_path):
    folders = [f"Path({str(tmp_path / f'p{k}')!r})" for k in range(2)]
    codes = [f"{OWN}use({folder}, {folder}, forget=True)" for folder in folders]
    children = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: use(tmp_path / f"t{k}", tmp_path / "shared"), range(4)))
    assert [child.wait() for child in children] == [0, 0]
    assert set(kept_files()) <= set(NAMES)


KILLED = """
import shutil
copy = shutil.copyfile
def die(*arguments):
    copy(*arguments)
    os._exit(99)
shutil.copyfile = die
compilation.keep_kernel(NAME, made(Path(sys.argv[1]), NAME), Path(sys.argv[1]))
"""


def test_a_killed_process_leaves_no_kernel_that_is_taken(tmp_path):
    command = [sys.executable, "-c", OWN + KILLED, tmp_path / "made"]
    assert subprocess.run(command).returncode == 99
    assert kept_files()  # temporary files
    assert compilation.take_kernel(NAME, tmp_path / "bundle") is None
    compilation.keep_kernel(NAME, made(tmp_path, NAME), tmp_path)
    assert kept_files() == [NAME]


def test_a_full_disk_is_not_an_error(tmp_path):
    resource = pytest.importorskip("resource")  # limits the size of files
    kernel = made(tmp_path, NAME)
    compilation.keep_kernel(NAME, kernel, tmp_path)
    large = made(tmp_path, NAMES[1], size=1_000_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        compilation.keep_kernel(NAMES[1], large, tmp_path)
        assert compilation.take_kernel(NAMES[1], tmp_path / "bundle") is None
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
        assert compilation.take_kernel(NAME, tmp_path / "bundle") is None  # files are too large
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept_files() == [NAME]
    assert not list((tmp_path / "bundle" / "kernels").iterdir())
    assert compilation.take_kernel(NAME, tmp_path / "bundle") == kernel


def test_a_read_only_cache_is_read(tmp_path):
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    kernel = made(tmp_path, NAME)
    compilation.keep_kernel(NAME, kernel, tmp_path)
    compilation.kernel_folder().chmod(0o500)
    try:
        assert compilation.take_kernel(NAME, tmp_path / "bundle") == kernel
        compilation.keep_kernel(NAMES[1], kernel, tmp_path)
    finally:
        compilation.kernel_folder().chmod(0o700)
    assert kept_files() == [NAME]


def test_an_invalid_limit_is_reported(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ONNXFOLD_KERNEL_CACHE_BYTES", "much")
    compilation.keep_kernel(NAME, made(tmp_path, NAME), tmp_path)
    assert kept_files() == [NAME]
    assert "ONNXFOLD_KERNEL_CACHE_BYTES must be a number of bytes, got 'much'" in caplog.text
