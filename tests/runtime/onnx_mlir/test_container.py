"""Test containers of docker and podman, with a stub of the compiler in a new image."""

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxfold.runtime.backends.base import CompileError, work_folder
from onnxfold.runtime.backends.onnx_mlir import OnnxMlir, Tool, find_tool

PATIENCE = 600
"""Time limit in seconds, long enough for a busy machine."""
IMAGE = f"localhost/onnxfold-tests:{os.getpid()}"


@pytest.fixture(scope="module", params=["docker", "podman"])
def engine(request) -> Iterator[str]:
    try:
        path = made_image(request.param, IMAGE)
    except NoEngineError as error:
        pytest.skip(str(error))
    yield path
    asked(path, "image", "rm", "--force", IMAGE)


@pytest.fixture
def tool(engine, monkeypatch, tmp_path) -> Tool:
    """Return the compiler in the image, and set a new folder for temporary files."""
    monkeypatch.delenv("ONNXFOLD_ONNX_MLIR", raising=False)
    monkeypatch.setenv("ONNXFOLD_CONTAINER_ENGINE", engine)
    monkeypatch.setenv("ONNXFOLD_ONNX_MLIR_IMAGE", IMAGE)
    folders = os.environ["PATH"].split(os.pathsep)
    without = [folder for folder in folders if not (Path(folder) / "onnx-mlir").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(without))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    found = find_tool()
    assert found.image
    return found


def running(tool: Tool) -> list[str]:
    return containers(tool.program, tool.image)


def test_files_belong_to_the_user(tool, tmp_path):
    built = OnnxMlir().compile(b"a model", tmp_path / "kernel", seconds=PATIENCE)
    assert [file.read_text() for file in built.files] == ["library\n"]
    status = built.files[0].stat()
    assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
    assert not os.listdir(tmp_path / "temporary")


@pytest.mark.parametrize("name", ["a:colon", "a,comma", 'a"quote', "two words", "a\\slash"])
def test_folder_may_have_any_name(tool, tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    with work_folder() as folder:
        (folder / "given").write_text("content")
        tool.run(folder, ["sh", "-c", "cat given > made"], PATIENCE)
        assert (folder / "made").read_text() == "content"


def test_exit_codes_and_messages_are_reported(tool):
    with work_folder() as folder:
        with pytest.raises(CompileError, match=r"^onnx-mlir failed \(exit code 14\): no$"):
            tool.run(folder, ["sh", "-c", "echo 'error: no' >&2; exit 14"], PATIENCE)
        with pytest.raises(CompileError, match="No space left"):
            tool.run(folder, ["sh", "-c", "echo > /dev/full"], PATIENCE)


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.2, 0.3, 0.45, 0.7, 2])
def test_container_can_be_ended_at_any_moment(tool, seconds):
    with pytest.raises(CompileError, match="longer than"), work_folder() as folder:
        tool.run(folder, ["sleep", "infinity"], seconds)  # process 1, which ignores SIGTERM
    assert not running(tool)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_container_ends_with_its_caller(tool, tmp_path, name):
    program = (
        "from onnxfold.runtime.backends.base import work_folder\n"
        "from onnxfold.runtime.backends.onnx_mlir import find_tool\n"
        "with work_folder() as folder:\n"
        "    find_tool().run(folder, ['sleep', '{}'], 3600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program.format(600)])
    deadline = time.monotonic() + PATIENCE
    while not running(tool) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(tool)
    process.send_signal(getattr(signal, name))
    process.wait()
    while running(tool) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(tool)
    # the next process removes remaining folders
    subprocess.run([sys.executable, "-c", program.format(0)], check=True)
    assert not os.listdir(tmp_path / "temporary")


STUB = """#!/bin/sh
# runs its arguments as a command; with arguments of a compiler, writes a library after a while
case $1 in
-*) while [ "$1" != -o ]; do shift; done; sleep 0.3 & wait; echo library > "$2.so" ;;
*) exec "$@" ;;
esac
"""


class NoEngineError(Exception):
    """Containers cannot run on this machine. The message is one line."""


def asked(*command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, input=stdin, capture_output=True, timeout=PATIENCE)


def made_image(engine: str, name: str) -> str:
    """Import an image with the stub into an engine, and return the path of the engine.

    Raises:
        NoEngineError: The engine is not installed, or does not run the image.
    """
    path = shutil.which(engine)
    if path is None:
        raise NoEngineError(f"{engine} is not installed")
    for command, stdin in (
        ((path, "import", "-", name), _file_system(name)),
        ((path, "run", "--rm", "--network=none", name, "/usr/local/bin/onnx-mlir", "true"), b""),
    ):
        done = asked(*command, stdin=stdin)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise NoEngineError(f"{engine} runs no container: {(lines or ['?'])[-1]}")
    return path


def containers(engine: str, image: str) -> list[str]:
    """Return the names of the containers of an image, running or not."""
    options = ("--all", f"--filter=ancestor={image}", "--format={{.Names}}")
    return asked(engine, "ps", *options).stdout.decode().split()


def _file_system(name: str) -> bytes:
    """Return a tar archive with the stub, busybox, and links to programs in busybox.

    Raises:
        NoEngineError: busybox is not installed.
    """
    shell = shutil.which("busybox")
    if shell is None:
        raise NoEngineError("busybox is not installed; install the package busybox-static")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path, data in (
            ("bin/busybox", Path(shell).read_bytes()),
            ("usr/local/bin/onnx-mlir", STUB.encode()),
            ("name", name.encode()),  # no other image has the same content
        ):
            member = tarfile.TarInfo(path)
            member.mode = 0o755
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for program in ("sh", "cat", "sleep", "tail"):
            member = tarfile.TarInfo(f"bin/{program}")
            member.type = tarfile.SYMTYPE
            member.linkname = "busybox"
            tar.addfile(member)
    return content.getvalue()
