"""Test the errors of compilers that fail in another process."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ABORTED
from runtime_models import bundle_of, needs_iree, parse, random

from onnxfold.runtime.backends.base import CompileError, limits, work_folder
from onnxfold.support import isolated
from tests.mounts import mounted


@pytest.fixture
def small(tmp_path) -> Iterator[Path]:
    """Yield the folder of a new file system of 6 MiB."""
    yield from mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=6m", "tmpfs")


def end(request, arrays):
    print(request, file=sys.stderr, flush=True)
    if request == "slow":
        time.sleep(60)
    if request == "refused":
        raise CompileError("x:1: error: failed to legalize")
    os.abort()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ("", rf"^the compiler crashed \({ABORTED}\)$"),
        ("LLVM ERROR: no", rf"^the compiler crashed \({ABORTED}\): LLVM ERROR: no$"),
        ("slow", r"^the compiler took longer than 2 s$"),
        ("refused", r"^failed to legalize$"),
        ("std::bad_alloc", rf"^the compiler crashed \({ABORTED}\): std::bad_alloc$"),
    ],
)
def test_the_reason_of_a_failed_compiler_is_one_line(request_, reason, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    seconds = 2 if request_ == "slow" else 30
    with pytest.raises(CompileError, match=reason), limits(seconds) as bounds:
        isolated.run("test_process:end", request_, **bounds)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_is_a_reason_not_to_compile():
    with pytest.raises(CompileError, match="No space left on device"), work_folder() as folder:
        (folder / "model.onnx").symlink_to("/dev/full")
        (folder / "model.onnx").write_bytes(b"x")


@needs_iree
@pytest.mark.parametrize("free", [0, 8 << 10, 200 << 10, 1800 << 10])
def test_a_full_folder_of_temporary_files_is_the_reason(small, free, tmp_path, monkeypatch):
    """The compiler cannot print the error, because the output is written to the full folder."""
    (small / "fill").write_bytes(bytes((6 << 20) - free))
    monkeypatch.setattr(tempfile, "tempdir", str(small))
    model = parse("three components", w=random(640, 640))
    bundle = bundle_of(model, tmp_path / "b", "r", "s", backend="iree")
    reasons = [kernel.reason for kernel in bundle.manifest.kernels if kernel.reason]
    assert reasons
    for reason in reasons:
        assert "no space left on device" in reason.lower()
