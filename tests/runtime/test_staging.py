"""Test the replacement of bundles, which is atomic, and the errors of damaged bundles."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from mounts import mounted
from runtime_models import TEXTS, adapter_feeds, bundle_of, original, parse, random, session_on

import onnxfold
from onnxfold.runtime.split_model import split
from onnxfold.support.errors import ModelError, OnnxFoldError, UsageError

NAMES = ["a", "b", "scale"]
EXTERNAL = {"save_as_external_data": True, "size_threshold": 0}


def version(number: int) -> onnx.ModelProto:
    return parse("adapter", w=random(64, 64, seed=number))


def write(number: int, folder):
    return bundle_of(version(number), folder, *NAMES, backend="onnxruntime")


def runs_as(folder) -> set[int]:
    """Return the number of each `version` of the model whose results a bundle computes."""
    session = session_on(folder, backend="onnxruntime")
    feeds = adapter_feeds()
    got = session.run(None, feeds)[0]
    return {k for k in (0, 1) if np.allclose(got, original(version(k), feeds)[0], atol=1e-4)}


def listed(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Replace copies of a bundle, each in a forked process. Process k kills itself before its k-th
# operation in CALLS. The first process that is not killed is the last one.
DIES = """if True:
    import os, shutil, sys
    from onnxfold.runtime.split_model import split

    CALLS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")
    base = sys.argv[2]

    def replace(folder, last):
        count = 0
        def watch(event, arguments):
            nonlocal count
            if event in CALLS:
                count += 1
                if count == last:
                    os.kill(os.getpid(), 9)
        sys.addaudithook(watch)
        names = ["a", "b", "scale"]
        split(sys.argv[1], folder, runtime_constants=names, backend="onnxruntime")
        os._exit(0)

    status = -1
    for last in range(1, 100):
        folder = f"{base}.{last:02}"
        shutil.copytree(base, folder)
        process = os.fork()
        if process == 0:
            replace(folder, last)
        status = os.waitpid(process, 0)[1]
        if status != 9:
            break
    sys.exit(status and 1)
"""


def test_a_killed_process_leaves_a_complete_bundle(tmp_path):
    onnx.save(version(1), tmp_path / "new.onnx")
    write(0, tmp_path / "old")
    (tmp_path / "old" / "of the user.onnx.data").write_text("keep")
    clean = listed(tmp_path / "old")
    command = [sys.executable, "-c", DIES, tmp_path / "new.onnx", tmp_path / "old"]
    subprocess.run(list(map(str, command)), check=True)
    seen = []
    for folder in sorted(tmp_path.glob("old.*")):
        (found,) = runs_as(folder)
        seen.append(found)
        write(0, folder)
        assert runs_as(folder) == {0}
        assert listed(folder) == clean
    assert seen == sorted(seen) and set(seen) == {0, 1} and len(seen) > 8


def test_a_session_never_mixes_two_bundles(tmp_path):
    write(0, tmp_path)
    early, late = (session_on(tmp_path, backend="onnxruntime") for _ in range(2))
    feeds = adapter_feeds()
    want = early.run(None, feeds)[0]
    write(1, tmp_path)
    assert early.run(None, feeds)[0].tobytes() == want.tobytes()
    with pytest.raises(ModelError, match="was replaced or moved; open it again"):
        late.run(None, feeds)
    assert runs_as(tmp_path) == {1}
    with pytest.raises(OnnxFoldError, match="it was not compiled: split the model with"):
        session_on(tmp_path, backend="iree", strict_backend=True)


def test_a_session_finds_its_bundle_in_another_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(0, "b")
    session = session_on("b", backend="onnxruntime")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    feeds = adapter_feeds()
    assert np.allclose(session.run(None, feeds)[0], original(version(0), feeds)[0], atol=1e-4)


def test_files_of_the_source_are_not_overwritten(tmp_path):
    bundle = write(0, tmp_path / "b")
    for source in (bundle.entry, bundle.runtime_fold):
        with pytest.raises(UsageError, match="belongs to the model that is split"):
            split(source, tmp_path / "b")
    onnx.save(version(1), tmp_path / "model.onnx", location="entry.onnx.data", **EXTERNAL)
    with pytest.raises(UsageError, match="belongs to the model that is split"):
        split(tmp_path / "model.onnx", tmp_path, runtime_constants=NAMES)
    with pytest.raises(UsageError, match=r"it contains data of 'model.onnx'"):
        split(version(0), tmp_path, runtime_constants=NAMES)
    (tmp_path / "manifest.json").write_text('{"name": "of a web application"}')
    with pytest.raises(UsageError, match="is not the manifest of a bundle"):
        write(0, tmp_path)
    assert runs_as(tmp_path / "b") == {0}


def test_models_with_data_files_are_replaced(tmp_path):
    for number in (0, 1):
        onnx.save(version(number), tmp_path / f"{number}.onnx", **EXTERNAL)
        split(tmp_path / f"{number}.onnx", tmp_path / "b", runtime_constants=NAMES)
        assert (tmp_path / "b" / "runtime_fold.onnx.data").exists()
        assert runs_as(tmp_path / "b") == {number}
    write(0, tmp_path / "b")
    assert listed(tmp_path / "b") == ["entry.onnx", "manifest.json", "runtime_fold.onnx"]


@pytest.mark.parametrize("name", ["entry.onnx", "runtime_fold.onnx", "manifest.json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "other", "folder"])
def test_a_damaged_bundle_is_one_clear_error(tmp_path, name, damage):
    write(0, tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes({"empty": b"", "cut": content[:-9], "other": b"\xff\x00" * 50}[damage])
    with pytest.raises(ModelError) as error:
        session_on(tmp_path, backend="onnxruntime").run(None, adapter_feeds())
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["entry.onnx", "runtime_fold.onnx"])
@pytest.mark.parametrize("constants", [["a", "b", "scale"], ["a", "b", "scale", "c"]])
def test_a_file_of_another_bundle_is_one_clear_error(tmp_path, name, constants):
    other = parse(
        "g (float[n] x, float[1] r) => (float[n] y) { e = Exp(r) f = Mul(e, r) y = Add(x, f) }"
    )
    bundle_of(other, tmp_path / "other", "r")
    text = TEXTS["adapter"].replace("float[1] scale", "float[1] scale, float[n, 64] c")
    text = text.replace("y = MatMul(x, merged)", "z = MatMul(x, merged) d = Exp(c) y = Add(z, d)")
    model = parse(text, w=random(64, 64))
    bundle_of(model, tmp_path / "b", *constants)
    (tmp_path / "other" / name).replace(tmp_path / "b" / name)
    feeds = {**adapter_feeds(), "c": random(5, 64)}
    with pytest.raises(ModelError, match=f"{name}: its .* differ from those in the manifest"):
        session_on(tmp_path / "b").run(None, feeds)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 3}, "format 3"),
        ({"format": None}, "it has no format"),
        ({"folder": "../other"}, "damaged manifest"),
        ({"cached": 3}, "damaged manifest"),
        ({"groups": [{"constants": []}]}, "damaged manifest"),
        ({"kernels": None}, "damaged manifest"),
        ({"runtime_constants": ["a"]}, "damaged manifest"),
        ({"outputs": None}, "damaged manifest"),
        ({"inputs": 5}, "damaged manifest"),
        # a later version may write keys that this version does not have
        (
            {"format": 7, "versions": {"onnxfold": "3.1"}, "later": {}},
            "format 7 of onnxfold 3.1; ",
        ),
        ({"format": 7, "later": {}}, "this version reads 1 and 2: use a newer onnxfold"),
        ({"format": 0, "later": {}}, "this version reads 1 and 2: split the model again"),
        ({"format": 7, "versions": ["3.1"], "later": {}}, "format 7; this version"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_clear_error(tmp_path, changes, says):
    write(0, tmp_path)
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert written["format"] == 2 and written["versions"]["onnxfold"] == onnxfold.__version__
    (tmp_path / "manifest.json").write_text(json.dumps({**written, **changes}))
    with pytest.raises(ModelError, match=f"manifest.*{says}"):
        session_on(tmp_path)


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs")


@pytest.mark.parametrize("free", [4, 12, 20, 160])
def test_a_bundle_is_not_changed_if_the_disk_is_full(disk, free):
    """``free`` is the free space of the disk in KiB. A new bundle requires about 24 KiB."""
    bundle = disk / "b"
    write(0, bundle)
    session = session_on(bundle, backend="onnxruntime")
    want = session.run(None, adapter_feeds())[0]
    clean = listed(bundle)
    room = shutil.disk_usage(disk).free
    (disk / "ballast").write_bytes(bytes(room - (free << 10)))
    if free == 160:
        write(1, bundle)
    else:
        with pytest.raises(OnnxFoldError, match="No space left"):
            write(1, bundle)
    assert runs_as(bundle) == {int(free == 160)} and listed(bundle) == clean
    assert session.run(None, adapter_feeds())[0].tobytes() == want.tobytes()
