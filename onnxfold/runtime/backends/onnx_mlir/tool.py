"""Where the compiler is: a binary, or an image that a container engine runs.

A binary is looked for first (``ONNXFOLD_ONNX_MLIR``, then ``onnx-mlir`` on the PATH), then docker
and podman (or ``ONNXFOLD_CONTAINER_ENGINE`` alone) with the image ``ONNXFOLD_ONNX_MLIR_IMAGE``.
Images are never pulled here, and are run by their content's digest: what a tag names may change.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BINARY = "ONNXFOLD_ONNX_MLIR"
ENGINE = "ONNXFOLD_CONTAINER_ENGINE"
IMAGE = "ONNXFOLD_ONNX_MLIR_IMAGE"

UPSTREAM_IMAGE = "ghcr.io/onnxmlir/onnx-mlir"
"""Upstream publishes no versions: its "latest" is the newest state of the main branch."""

_ENGINES = ("docker", "podman")
_SECONDS = 30.0  # for an engine or a binary to say what it is


class Tool(Protocol):
    """A compiler that was found."""

    @property
    def identity(self) -> str:
        """Which compiler it is: changes with its version."""

    def command(self, folder: Path, arguments: Sequence[str]) -> list[str]:
        """The command line that runs it on files of a folder."""

    def environment(self) -> dict[str, str] | None:
        """Environment variables for the command; None for those of this process."""

    def stop(self, command: Sequence[str]) -> None:
        """End what is left of a command that was killed for taking too long."""


@dataclass(frozen=True)
class Native:
    """A binary on this machine."""

    path: str
    identity: str

    def command(self, folder: Path, arguments: Sequence[str]) -> list[str]:
        """The binary and its arguments."""
        return [self.path, *arguments]

    def environment(self) -> dict[str, str]:
        """Those of this process without the variable that the compiler takes more flags from."""
        return {k: v for k, v in os.environ.items() if k != "ONNX_MLIR_FLAGS"}

    def stop(self, command: Sequence[str]) -> None:
        """Nothing: the process was killed."""


@dataclass(frozen=True)
class Container:
    """An image that a container engine runs.

    Attributes:
        engine: Path of docker or podman.
        image: The image by its digest.
        options: What this engine needs so that the files of a run are this user's.
    """

    engine: str
    image: str
    options: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The image."""
        return f"image {self.image}"

    def command(self, folder: Path, arguments: Sequence[str]) -> list[str]:
        """Runs the image once: as this user, without network, and with this one folder."""
        return [
            *(self.engine, "run", "--rm", "--pull=never", "--network=none"),
            f"--name=onnxfold-{os.getpid()}-{secrets.token_hex(4)}",
            *self.options,
            f"--volume={folder}:{folder}:rw",
            f"--workdir={folder}",
            # the user's image starts the compiler, the developers' image a shell
            "--entrypoint=onnx-mlir",
            self.image,
            *arguments,
        ]

    def environment(self) -> None:
        """Those of this process: none of them reaches the container."""

    def stop(self, command: Sequence[str]) -> None:
        """Remove the container: it goes on when the engine's client is killed."""
        name = next(word for word in command if word.startswith("--name=")).partition("=")[2]
        _ask([self.engine, "rm", "--force", name])


def find_tool(environment: Mapping[str, str] | None = None) -> Tool | str:
    """The compiler, or why there is none.

    Args:
        environment: Variables to look at; those of this process by default.
    """
    given = os.environ if environment is None else environment
    if sys.platform == "win32":
        return "onnx-mlir is not supported on Windows"
    if given.get(BINARY):
        path = shutil.which(given[BINARY], path=given.get("PATH"))
        if path is None:
            return f"{BINARY} is no program: {given[BINARY]}"
        return _native(path)
    path = shutil.which("onnx-mlir", path=given.get("PATH"))
    if path is not None:
        return _native(path)
    return _container(given)


def _native(path: str) -> Tool | str:
    answer = _ask([path, "--version"])
    if isinstance(answer, str):
        return f"{path} does not run: {answer}"
    state = Path(path).stat()
    version = " ".join(answer.out.split())
    return Native(path, f"binary {version} ({state.st_size} bytes, {state.st_mtime_ns})")


def _container(given: Mapping[str, str]) -> Tool | str:
    if sys.platform != "linux":
        return "the image's libraries run on Linux only; set ONNXFOLD_ONNX_MLIR to a binary"
    names = [given[ENGINE]] if given.get(ENGINE) else list(_ENGINES)
    found = [(n, path) for n in names if (path := shutil.which(n, path=given.get("PATH")))]
    if not found:
        wanted = f"{ENGINE} is no program: {names[0]}" if given.get(ENGINE) else "no docker, podman"
        return f"onnx-mlir is not on the PATH, and there is no container engine ({wanted})"
    image = given.get(IMAGE) or UPSTREAM_IMAGE
    reasons = []
    for name, engine in found:
        answer = _ask([engine, "image", "inspect", "--format={{.Id}}", image])
        if isinstance(answer, str):
            reasons.append(f"{name}: {answer}")
            continue
        digest = answer.out.strip()
        if not digest:
            reasons.append(f"{name}: it does not tell the id of {image}")
            continue
        named = digest if ":" in digest else f"sha256:{digest}"
        return Container(engine, named, _user_options(engine))
    return f"onnx-mlir is not on the PATH, and no engine has the image: {'; '.join(reasons)}"


def _user_options(engine: str) -> tuple[str, ...]:
    """Options by which what runs in a container is this user, and may use a mounted folder."""
    here = f"--user={os.getuid()}:{os.getgid()}"
    if Path(engine).name.startswith("podman"):
        # without root it gives a container other ids; where SELinux rules, the folder has a label
        keep = ["--userns=keep-id"] if os.getuid() else []
        return (*keep, "--security-opt=label=disable", here)
    if os.getuid():
        # a docker without root calls its user root
        answer = _ask([engine, "info", "--format={{.SecurityOptions}}"])
        if not isinstance(answer, str) and "rootless" in answer.out:
            return ("--user=0:0",)
    return (here,)


@dataclass(frozen=True)
class _Answer:
    out: str


def _ask(command: Sequence[str]) -> _Answer | str:
    """What a command prints, or why it does not."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"exit code {done.returncode}"
    return _Answer(done.stdout)
