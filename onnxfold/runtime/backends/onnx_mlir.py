"""onnx-mlir: MLIR ahead of time to a shared library, by its binary or its container image.

A binary is looked for first (``ONNXFOLD_ONNX_MLIR``, then ``onnx-mlir`` on the PATH), then docker
and podman (or ``ONNXFOLD_CONTAINER_ENGINE`` alone) with the image ``ONNXFOLD_ONNX_MLIR_IMAGE``.
Images are never pulled here, and are run by their content's digest: what a tag names may change.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
import platform
import secrets
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.memory import cpu_features, cpu_level
from onnxfold.onnxruntime_sessions import array_of
from onnxfold.runtime.backends.base import (
    Built,
    CompileError,
    Run,
    Values,
    reasons_against,
    with_options,
)
from onnxfold.runtime.backends.onnx_mlir_library import NUMBERS, Library, LibraryError
from onnxfold.runtime.backends.process import ending, memory_limit, run_command, work_folder
from onnxfold.runtime.bundles.manifest import Kernel

BINARY = "ONNXFOLD_ONNX_MLIR"
ENGINE = "ONNXFOLD_CONTAINER_ENGINE"
IMAGE = "ONNXFOLD_ONNX_MLIR_IMAGE"

UPSTREAM_IMAGE = "ghcr.io/onnxmlir/onnx-mlir"
"""Upstream publishes no versions: its "latest" is the newest state of the main branch."""

MODEL = "model.onnx"

STAGES = {"1-onnx": "--EmitONNXIR", "2-mlir": "--EmitMLIR", "3-llvm": "--EmitLLVMIR"}
"""What can be written on the way to a library, by the names of the files."""

_ENGINES = ("docker", "podman")
_SECONDS = 30.0  # for an engine or a binary to say what it is

_locks: dict[str, threading.Lock] = {}  # of all calls of a library, which a process loads once


@dataclass(frozen=True)
class Tool:
    """The compiler: a binary on this machine, or in an image that a container engine runs.

    Attributes:
        program: Path of the binary, or of docker or podman.
        version: Of the binary, which tells it from others.
        image: The image by its digest; empty for a binary.
        options: What this engine needs so that the files of a run are this user's, and so that its
            memory is limited.
    """

    program: str
    version: str = ""
    image: str = ""
    options: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The image or the binary."""
        return f"image {self.image}" if self.image else f"binary {self.version}"

    def command(self, folder: Path, arguments: Sequence[str], name: str) -> list[str]:
        """Return the command line. The image runs as this user, without network, with one folder.

        Args:
            folder: A `work_folder`, the working directory.
            arguments: Those of the compiler.
            name: Of the container.
        """
        if not self.image:
            return [self.program, *arguments]
        mount = io.StringIO()
        fields = ("type=bind", f"source={folder}", f"target={folder}")
        csv.writer(mount, lineterminator="").writerow(fields)
        return [
            *(self.program, "run", "--rm", "--pull=never", "--network=none", f"--name={name}"),
            # the compiler is process 1 there, which ignores what would end others
            *("--stop-signal=KILL", "--sig-proxy=false"),
            *self.options,
            f"--mount={mount.getvalue()}",
            f"--workdir={folder}",
            # the user's image starts the compiler, the developers' image a shell
            "--entrypoint=onnx-mlir",
            self.image,
            *arguments,
        ]

    def run(self, folder: Path, arguments: Sequence[str], seconds: float) -> None:
        """Run the compiler on files of a `work_folder`.

        Raises:
            CompileError: It fails, crashes, or takes longer than ``seconds``.
        """
        name = f"onnxfold-{secrets.token_hex(8)}"
        done = run_command(
            self.command(folder, arguments, name),
            seconds,
            folder=folder,
            # but for the variable that the compiler takes more flags from
            environment={k: v for k, v in os.environ.items() if k != "ONNX_MLIR_FLAGS"},
            removal=[self.program, "rm", "--force", name] if self.image else None,
        )
        if done.returncode:
            raise CompileError(f"onnx-mlir {ending(done.returncode, done.stderr)}")


def find_tool() -> Tool:
    """Return the compiler.

    Raises:
        CompileError: There is none; it says what was looked for.
    """
    named = os.environ.get(BINARY)
    path = shutil.which(named or "onnx-mlir")
    if path is None:
        if named:
            raise CompileError(f"{BINARY} is no program: {named}")
        return _container()
    path = os.path.abspath(path)  # it runs in another folder
    try:
        version = " ".join(_ask([path, "--version"]).split())
    except CompileError as error:
        raise CompileError(f"{path} does not run: {error}") from error
    state = Path(path).stat()
    return Tool(path, f"{version} ({state.st_size} bytes, {state.st_mtime_ns})")


def _container() -> Tool:
    if sys.platform != "linux":
        raise CompileError(f"the image's libraries run on Linux only; set {BINARY} to a binary")
    named = os.environ.get(ENGINE)
    names = [named] if named else list(_ENGINES)
    found = [(name, os.path.abspath(path)) for name in names if (path := shutil.which(name))]
    if not found:
        wanted = f"{ENGINE} is no program: {named}" if named else "no docker, podman"
        raise CompileError(
            f"onnx-mlir is not on the PATH, and there is no container engine ({wanted})"
        )
    image = os.environ.get(IMAGE) or UPSTREAM_IMAGE
    reasons = []
    for name, engine in found:
        try:
            digest = _ask([engine, "image", "inspect", "--format={{.Id}}", image]).strip()
        except CompileError as error:
            reasons.append(f"{name}: {error}")
            continue
        if digest:
            digest = digest if ":" in digest else f"sha256:{digest}"
            return Tool(engine, image=digest, options=_options(engine))
        reasons.append(f"{name}: it does not tell the id of {image}")
    raise CompileError(
        f"onnx-mlir is not on the PATH, and no engine has the image: {'; '.join(reasons)}"
    )


def _options(engine: str) -> tuple[str, ...]:
    """Options by which what runs in a container is this user, and may use a folder and memory."""
    here = f"--user={os.getuid()}:{os.getgid()}"
    if Path(engine).name.startswith("podman"):
        # without root it gives a container other ids; where SELinux rules, the folder has a label;
        # a container has the limits of the client, and not everywhere limits of its own
        keep = ["--userns=keep-id"] if os.getuid() else []
        return (*keep, "--security-opt=label=disable", here)
    memory = f"--memory={memory_limit()}"
    if os.getuid():
        # a docker without root calls its user root
        with contextlib.suppress(CompileError):
            if "rootless" in _ask([engine, "info", "--format={{.SecurityOptions}}"]):
                return (memory, "--user=0:0")
    return (memory, here)


def _ask(command: Sequence[str]) -> str:
    """Return what a command prints.

    Raises:
        CompileError: It does not run, or fails.
    """
    done = run_command(command, _SECONDS, what="the answer")
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise CompileError(lines[-1][:200] if lines else f"exit code {done.returncode}")
    return done.stdout


def flags(machine: str = "", cpu: str | None = None) -> list[str]:
    """Flags of every compilation.

    Constants are not computed by the compiler: it keeps intermediate results in 64 bits, and so
    gets other bits than a runtime. Its only architecture for an x86 is "x86-64": others end in an
    error, none in code without vectors. What float16 is converted by without an instruction for it
    depends on which libraries a process has loaded. Code that checks inputs is left out, because
    the compiler dies of bfloat16 there: `Library.call` checks them.
    """
    target = []
    if (machine or platform.machine()) in ("x86_64", "AMD64"):
        level = cpu_level() if cpu is None else cpu
        target = ["--march=x86-64", *([f"--mcpu={level}"] if level else [])]
    return ["-O3", *target, "--disable-constant-prop", "--verifyInputTensors=false"]


def library_arguments(folder: Path, name: str, given: Sequence[str]) -> list[str]:
    """Return the arguments for a shared library ``NAME.so``; the name is the tag of its symbols,
    too.
    """
    output = ["--EmitLib", f"--tag={name}", "-o", str(folder / name)]
    return [*given, *output, str(folder / MODEL)]


def stage_arguments(folder: Path, stage: str, given: Sequence[str]) -> list[str]:
    """Return the arguments for one of `STAGES`, which writes ``STAGE.onnx.mlir``."""
    return [*given, STAGES[stage], "--tag=NONE", "-o", str(folder / stage), str(folder / MODEL)]


class OnnxMlir:
    """The backend, see `onnxfold.runtime.backends.base.Backend`."""

    name = "onnx-mlir"

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._flags = with_options(flags(), options)
        own_target = any(option.lstrip("-").startswith("m") for option in options)
        self._cpu = cpu_features() if own_target else cpu_level()

    @functools.cached_property
    def _tool(self) -> Tool:
        return find_tool()

    def missing(self) -> str | None:
        """Return why nothing can be compiled here, or None."""
        try:
            self._tool  # noqa: B018  looks for it
        except CompileError as error:
            return str(error)
        return None

    def maker(self) -> str:
        """Return the binary or the image."""
        return self._tool.identity

    def supported(self, model: Any) -> list[str]:
        """Return why the model is not given to the compiler; nothing if it is.

        The compiler itself says which ops it lowers, and the check which it lowers wrongly.
        """
        import onnx_ir as ir  # which who runs a kernel need not have

        taken = {ir.DataType.from_numpy(dtype) for dtype in NUMBERS}
        taken -= {ir.DataType.INT4, ir.DataType.UINT4}  # the compiler has none
        return reasons_against(model, self.name, lambda value: value.dtype in taken)

    def key_of(self, graph: str) -> dict[str, str]:
        """Return the model, the kind of machine, its CPU, the flags.

        Of the CPU it is the level, and all that it has if options say what to compile for.
        """
        return {
            "graph": graph,
            "backend": self.name,
            "machine": _machine(),
            "cpu": self._cpu,
            "flags": " ".join(self._flags),
        }

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Compile a model to a library; see `Backend.compile`.

        The name of the target becomes the tag of the library's symbols.
        """
        name = target.name
        made = self._made(content, library_arguments, name, ".so", target.parent, seconds)
        return Built([made], f"run_main_graph_{name}")

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> list[Path]:
        """Write the model in the ONNX dialect, in lower dialects and in LLVM's."""
        return [
            self._made(content, stage_arguments, stage, ".onnx.mlir", folder, seconds)
            for stage in STAGES
        ]

    def _made(
        self, content: bytes, arguments: Any, name: str, suffix: str, to: Path, seconds: float
    ) -> Path:
        """Have the tool write a file from a model, and move it to a folder."""
        with work_folder() as folder:
            (folder / MODEL).write_bytes(content)
            self._tool.run(folder, arguments(folder, name, self._flags), seconds)
            made = folder / f"{name}{suffix}"
            if not made.is_file():
                raise CompileError(f"onnx-mlir wrote no {made.name}")
            return Path(shutil.move(made, to / f"{name}{made.suffix}"))

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Return why a stored kernel with this key cannot be run here, or None."""
        if key.get("machine") != _machine():
            return f"the kernel was made for {key.get('machine')}, this is {_machine()}"
        if key.get("cpu", "") not in ("", cpu_level(), cpu_features()):
            return f"the kernel was made for another CPU: {key['cpu']}"
        return None

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Return a kernel of a stored library.

        Raises:
            CompileError: The library does not load, or does not have the function.
        """
        file = folder / str(kernel.file)
        library = Library(file)
        library.require(kernel.function)
        fixed = [np.asarray(weights[name]) for name in kernel.weights]
        # whether its functions may run at the same time is promised nowhere
        lock = _locks.setdefault(str(file), threading.Lock())

        def run(values: Values) -> dict[str, Any]:
            given = [array_of(values[name]) for name in kernel.inputs]
            with lock:
                results = library.call(kernel.function, [*given, *fixed])
            if len(results) != len(kernel.outputs):
                raise LibraryError(f"it has {len(results)} results, not {len(kernel.outputs)}")
            return dict(zip(kernel.outputs, results, strict=True))

        return run


def _machine() -> str:
    return f"{sys.platform}-{platform.machine()}"
