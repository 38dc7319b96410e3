"""``python -m tests.hostile.fuzz wire|load FOLDER [libFuzzer options]``: fuzzing by coverage.

Needs atheris (`pip install atheris`). FOLDER grows by every input that reaches new code; what fails
is written beside it. Begin with a copy of `tests/hostile/corpus`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris
import onnx
from google.protobuf.message import DecodeError

with atheris.instrument_imports(include=["onnxfold"]):
    from onnxfold.api import optimize_file
    from onnxfold.errors import OnnxFoldError
    from onnxfold.storage import wire

_folder = tempfile.TemporaryDirectory(prefix="onnxfold-fuzz-")
_path = Path(_folder.name) / "m.onnx"


def scan(data: bytes) -> None:
    """What the wire scan puts back in place is the same message; what protobuf takes, it takes."""
    spans: list[bytes] = []

    def replace(offset: int, length: int) -> bytes:
        spans.append(data[offset : offset + length])
        return spans[-1]

    try:
        pieces, length = wire.rewrite(data, 1, replace)
    except wire.WireError:
        try:
            onnx.ModelProto.FromString(data)
        except DecodeError:
            return
        raise
    joined = wire.join(data, pieces)
    assert len(joined) == length
    try:
        before = onnx.ModelProto.FromString(data)
    except DecodeError:
        return
    assert onnx.ModelProto.FromString(joined).SerializeToString() == before.SerializeToString()


def load(data: bytes) -> None:
    """Load, optimize and save: done, or one of our errors that names the file."""
    _path.write_bytes(data)
    try:
        optimize_file(_path, _path.with_suffix(".out"), fsync=False)
    except OnnxFoldError as error:
        assert str(_path) in str(error)


def main() -> None:
    """Fuzz until libFuzzer ends."""
    target = {"wire": scan, "load": load}[sys.argv[1]]
    options = ["-max_len=20000", "-rss_limit_mb=2048", "-timeout=20"]
    atheris.Setup([sys.argv[0], *options, *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
