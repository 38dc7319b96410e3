"""Test unusual names and kinds of input, output and data files."""

import os
import socket
from pathlib import Path

import numpy as np
import onnx
import pytest
from folders import names_in

from onnxfold.cli import main
from onnxfold.ir import storage
from onnxfold.support.errors import OnnxFoldError
from tests.model_table import external, parse

NAMES = [
    b"line\nbreak.onnx",
    b"quo'te\".onnx",
    "ünï☃.onnx".encode(),
    b"\xff\xfe.onnx",
    b"-dash.onnx",
    b"two  spaces .onnx",
    b"\x1b[31mred.onnx",
    b"a" * 245 + b".onnx",
]
KINDS = ["fifo", "socket", "folder", "device", "loop"]


def model(**entries: str) -> onnx.ModelProto:
    made = parse(
        """g (float[1,64] x) => (float[1,64] y) <float[64,64] w = *>
        { t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) }"""
    )
    if entries:
        made.graph.initializer[0].CopyFrom(external("w", [64, 64], **entries))
    return made


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(), tmp_path / "m.onnx")
    return tmp_path


def optimize(capsys, *words: str, fails: str = "") -> None:
    """Run the command, and assert that it succeeds, or fails as expected.

    If `fails` is not empty, the command must print one printable line that contains `fails`, and
    must not change the names in the working directory.
    """
    before = names_in(".")
    code = main(["optimize", "-q", *words])
    error = capsys.readouterr().err
    assert code == (2 if fails else 0), error
    assert error.count("\n") == bool(fails) and fails in error and "bug" not in error
    assert error.removesuffix("\n").isprintable()
    if fails:
        assert names_in(".") == before
    assert not [name for name in names_in(".") if "onnxfold-" in name]


@pytest.mark.parametrize("name", [os.fsdecode(name) for name in NAMES])
def test_unusual_names(folder, capsys, name) -> None:
    optimize(capsys, "-o", name, "--", "m.onnx")
    optimize(capsys, "-o", "back.onnx", "--check", "1", "--", name)
    assert storage.load("back.onnx").graph.initializers
    utf8 = "" if name.encode(errors="replace").decode() == name else "not UTF-8"
    optimize(capsys, "m.onnx", "-o", "e.onnx", "--external-data-name", name[:-1], fails=utf8)
    if not utf8:
        optimize(capsys, "e.onnx", "-o", "back.onnx", "--no-external-data")
        optimize(capsys, "e.onnx", "-o", "back.onnx", "--share-weights")
    optimize(capsys, "-o", "no.onnx", "--", f"none{name[4:]}", fails="no such file")
    optimize(capsys, "m.onnx", "-o", f"none/{name}", fails="its folder does not exist")


def make(kind: str, name: str) -> None:
    if kind == "fifo":
        os.mkfifo(name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
    elif kind == "folder":
        os.mkdir(name)
    else:
        os.symlink("/dev/null" if kind == "device" else name, name)


@pytest.mark.parametrize("kind", KINDS)
def test_special_files_are_rejected(folder, capsys, kind) -> None:
    """The command does not block on special files, and does not replace them."""
    onnx.save(model(location="k"), "external.onnx")
    make(kind, "k")
    make(kind, "o.onnx.data")
    is_written = os.stat("k", follow_symlinks=False)
    optimize(capsys, "k", "-o", "o.onnx", fails="k: ")
    optimize(capsys, "m.onnx", "-o", "k", fails="k: cannot be written")
    optimize(capsys, "external.onnx", "-o", "o.onnx", fails="external.onnx: ")
    os.rename("external.onnx", "external.model")
    optimize(capsys, "m.onnx", "-o", "o.onnx", "--external-data", fails="o.onnx.data: cannot be")
    optimize(capsys, "m.onnx", "-o", "o.onnx", "--external-data-name", "k", fails="k: cannot be")
    # the command reads the other models of the folder, which may use the data file
    os.rename("k", "z.onnx")
    os.rename("external.model", "y.onnx")
    open("d", "w", encoding="utf-8").close()
    optimize(capsys, "m.onnx", "-o", "o.onnx", "--external-data-name", "d")
    after = os.stat("z.onnx", follow_symlinks=False)
    assert (after.st_ino, after.st_mode) == (is_written.st_ino, is_written.st_mode)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"location": "w\0d"}, "is not a file name"),
        ({"location": "a" * 5000}, "File name too long"),
        ({"location": "gone"}, "external data file 'gone' cannot be opened: No such file"),
        ({"location": "d", "offset": "9" * 5000}, "is not a non-negative number"),
        ({"location": "d", "length": "x" * 5000}, "is not a non-negative number"),
        ({"location": "d", "offset": str(1 << 63)}, "has 0 bytes"),
    ],
)
def test_invalid_locations_are_rejected(folder, capsys, entries, reason) -> None:
    open("d", "w", encoding="utf-8").close()
    onnx.save(model(**entries), "e.onnx")
    optimize(capsys, "e.onnx", "-o", "o.onnx", fails="e.onnx: ")
    with pytest.raises(OnnxFoldError, match=reason) as caught:
        storage.load("e.onnx")
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize("many", [300, 1200])
@pytest.mark.parametrize("options", [{}, {"external_data": True}, {"share_weights": True}])
def test_many_data_files(folder, many, options) -> None:
    """A model may have more data files than a process may open."""
    resource = pytest.importorskip("resource")
    import onnxfold

    weights = {f"w{i}": np.full(300, i, np.float32) for i in range(many)}
    proto = parse(f"g () => (float[300] y) {{ y = Sum({', '.join(weights)}) }}")
    for name, weight in weights.items():
        weight.tofile(name)
        proto.graph.initializer.append(external(name, [300], location=name))
    onnx.save(proto, "many.onnx")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        onnxfold.optimize_file("many.onnx", "o.onnx", keep=("y",), **options)
        written = storage.load("o.onnx").graph.initializers
        assert [written[f"w{i}"].const_value.numpy()[0] for i in range(many)] == [*range(many)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
