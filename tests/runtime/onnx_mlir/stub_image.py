"""An image made from scratch with a stand-in for onnx-mlir, for containers that really run."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

STUB = """#!/bin/sh
# runs what it is given; of a compiler's arguments it makes a library, after a while
case $1 in
-*) while [ "$1" != -o ]; do shift; done; sleep 0.3 & wait; echo library > "$2.so" ;;
*) exec "$@" ;;
esac
"""


class NoEngineError(Exception):
    """Containers cannot be run here; the message says why in one line."""


def asked(*command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """What a command answers."""
    return subprocess.run(command, input=stdin, capture_output=True, timeout=120)


def made_image(engine: str, name: str) -> str:
    """Give an engine the image, under a name; return the engine's path.

    Raises:
        NoEngineError: The engine is not there, or does not run the image.
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
    """The names of those that are made of an image, running or not."""
    options = ("--all", f"--filter=ancestor={image}", "--format={{.Names}}")
    return asked(engine, "ps", *options).stdout.decode().split()


def _file_system(name: str) -> bytes:
    """A shell that needs no libraries, and the stub."""
    shell = shutil.which("busybox")
    if shell is None:
        raise NoEngineError("there is no busybox to make an image of (package busybox-static)")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path, data in (
            ("bin/busybox", Path(shell).read_bytes()),
            ("usr/local/bin/onnx-mlir", STUB.encode()),
            ("name", name.encode()),  # so that no other image is the same
        ):
            member = tarfile.TarInfo(path)
            member.mode, member.size = 0o755, len(data)
            tar.addfile(member, io.BytesIO(data))
        for program in ("sh", "cat", "sleep", "tail"):
            member = tarfile.TarInfo(f"bin/{program}")
            member.type, member.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(member)
    return content.getvalue()
