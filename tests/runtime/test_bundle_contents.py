"""Test that cached tensors are not reused after a file of a bundle was replaced or changed."""

import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from runtime_models import bundle_of, parse, random, session_on

from onnxfold.runtime.bundles.bundle import open_bundle
from onnxfold.runtime.bundles.manifest import FOLD_FILE
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.support.errors import ModelError

FEEDS = {"x": random(3, 64), "c": random(64, seed=1)}
TEXT = """g (float[n, 64] x, float[64] c) => (float[n, 64] y) {
    e = Exp(c) p = Mul(e, w) y = Add(x, p) }"""


def made(folder: Path, weight: float) -> Path:
    return bundle_of(parse(TEXT, w=np.full(64, weight, np.float32)), folder, "c").folder


def expected(folder: Path) -> bytes:
    """Run the two models of a bundle with onnxruntime only, and return the bytes of y."""
    fold, entry = (ort.InferenceSession(folder / n) for n in (FOLD_FILE, "entry.onnx"))
    names = [value.name for value in fold.get_outputs()]
    folded = dict(zip(names, fold.run(names, {"c": FEEDS["c"]}), strict=True))
    return entry.run(None, {"x": FEEDS["x"], **folded})[0].tobytes()


def got(folder: Path, cache: FoldCache) -> bytes:
    return session_on(folder, cache=cache).run(None, FEEDS)[0].tobytes()


def copy_with_times(source: Path, target: Path) -> None:
    shutil.copy2(source, target)


def replace_with_times(source: Path, target: Path) -> None:
    shutil.copy2(source, target.with_name("new"))
    os.replace(target.with_name("new"), target)


def unpack(source: Path, target: Path) -> None:
    archive = target.with_name("archive.tar")
    with tarfile.open(archive, "w") as file:
        file.add(source, target.name)
    with tarfile.open(archive) as file:
        file.extractall(target.parent, filter="data")
    archive.unlink()


def overwrite(source: Path, target: Path) -> None:
    """Overwrite a file in place, and restore its times."""
    status = target.stat()
    target.write_bytes(source.read_bytes())
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


WAYS = [copy_with_times, replace_with_times, unpack, overwrite]


@pytest.mark.parametrize("restore", WAYS)
@pytest.mark.parametrize("shared", [False, True], ids=["memory", "folder"])
def test_a_replaced_file_is_detected_in_spite_of_its_times(restore, shared, tmp_path):
    cache = FoldCache(tmp_path / "folds") if shared else FoldCache()
    one = made(tmp_path / "one", 1)
    two = made(tmp_path / "two", 2)
    shutil.copy2(two / FOLD_FILE, tmp_path / "kept")
    before = got(two, cache)
    assert before == expected(two)
    restore(one / FOLD_FILE, two / FOLD_FILE)
    assert got(two, cache) == expected(two) != before
    restore(tmp_path / "kept", two / FOLD_FILE)
    assert got(two, cache) == expected(two) == before


@pytest.mark.parametrize("restore", WAYS)
def test_a_session_rejects_a_file_that_was_replaced_before_the_first_fold(restore, tmp_path):
    cache = FoldCache()
    one = made(tmp_path / "one", 1)
    two = made(tmp_path / "two", 2)
    session = session_on(two, cache=cache)
    restore(one / FOLD_FILE, two / FOLD_FILE)
    with pytest.raises(
        ModelError, match=r"runtime_fold\.onnx: the file was changed after the bundle was"
    ):
        session.run(None, FEEDS)
    assert got(two, cache) == expected(two)


def test_the_content_is_hashed_once(tmp_path, monkeypatch):
    """Later sessions compare the status of the file with a record. A damaged record is replaced."""
    folder = made(tmp_path / "one", 1)
    for name in (FOLD_FILE, "manifest.json"):
        os.utime(folder / name, (0, 0))
    record = tmp_path / "cache" / "onnxfold" / "bundles"
    first = open_bundle(folder).fold_hash
    (file,) = record.glob("*.json")
    content = file.read_bytes()
    assert open_bundle(folder).fold_hash == first
    file.write_bytes(b"damaged")
    assert open_bundle(folder).fold_hash == first
    assert file.read_bytes()[:8] == content[:8]


def test_a_bundle_runs_without_a_user_cache(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = made(tmp_path / "one", 1)
    assert got(folder, FoldCache()) == expected(folder)
    assert open_bundle(folder).fold_hash == open_bundle(folder).fold_hash
