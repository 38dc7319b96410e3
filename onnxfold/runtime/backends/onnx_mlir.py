"""onnx-mlir: compiles MLIR ahead of time to a shared library, by a binary or container image.

First a binary is searched (``ONNXFOLD_ONNX_MLIR``, then ``onnx-mlir`` on the PATH), then docker and
podman (or ``ONNXFOLD_CONTAINER_ENGINE`` alone) with the image ``ONNXFOLD_ONNX_MLIR_IMAGE``. Images
are never pulled, and are run by their digest, as tags may change.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.runtime.backends.base import (
    Built,
    CompileError,
    Run,
    Values,
    ending,
    limits,
    memory_limit,
    reasons_against,
    refuse_accelerators,
    value_of,
    with_options,
    work_folder,
)
from onnxfold.runtime.backends.onnx_mlir_library import NUMBERS, Library
from onnxfold.runtime.backends.targets import cpu_key, unusable_cpu
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.support import forks, isolated
from onnxfold.support.forks import cached_property
from onnxfold.support.onnxruntime_sessions import array_of
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.system import IS_LINUX, cpu_levels, system_and_machine, user_and_group

BINARY = "ONNXFOLD_ONNX_MLIR"
ENGINE = "ONNXFOLD_CONTAINER_ENGINE"
IMAGE = "ONNXFOLD_ONNX_MLIR_IMAGE"

UPSTREAM_IMAGE = "ghcr.io/onnxmlir/onnx-mlir"
"""The upstream image, which has no versions: "latest" is the current main branch."""

MODEL = "model.onnx"

STAGES = {"1-onnx": "--EmitONNXIR", "2-mlir": "--EmitMLIR", "3-llvm": "--EmitLLVMIR"}
"""Flags of the stages of compilation, by the names of their files."""

_TARGET = "--mcpu"
_X86 = ("x86_64", "AMD64")
_BASELINE = "x86-64"
_LEVEL = "x86-64-v3"  # the highest CPU level for which kernels were measured
_ON_CPUS: dict[str, tuple[str, ...]] = {"maccel": ()}
"""Options that select an accelerator, with the values for CPUs."""

_UNKNOWN = re.compile(
    r"Unknown command line argument '([^']*)'[^\n]*(?:\n[^\n]*Did you mean '([^']*)'\?)?"
)
"""LLVM's messages about an unknown option, and about the nearest one, which may be missing."""

_ENGINES = ("docker", "podman")
_SECONDS = 30.0  # limit for commands that query an engine or a binary


@dataclass(frozen=True)
class Tool:
    """The compiler: a binary, or a container image with an engine to run it.

    ``image`` is the digest of the image, empty for a binary, which ``version`` identifies.
    ``options`` of the engine give the files of a run to the current user, and limit its memory.
    """

    program: str
    version: str = ""
    image: str = ""
    options: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The image or the binary with its version."""
        return f"image {self.image}" if self.image else f"binary {self.version}"

    def command(self, folder: Path, arguments: Sequence[str], name: str) -> list[str]:
        """Return the command line: an image runs as this user, without network, with one folder."""
        if not self.image:
            return [self.program, *arguments]
        mount = io.StringIO()
        fields = ("type=bind", f"source={folder}", f"target={folder}")
        csv.writer(mount, lineterminator="").writerow(fields)
        return [
            self.program,
            "run",
            "--rm",
            "--pull=never",
            "--network=none",
            f"--name={name}",
            # the compiler is process 1 of the container, which ignores other signals
            "--stop-signal=KILL",
            "--sig-proxy=false",
            *self.options,
            f"--mount={mount.getvalue()}",
            f"--workdir={folder}",
            # some images start the compiler by default, others a shell
            "--entrypoint=onnx-mlir",
            self.image,
            *arguments,
        ]

    def run(self, folder: Path, arguments: Sequence[str], seconds: float) -> None:
        """Run the compiler on files of a `work_folder`."""
        done = self._result_of(folder, arguments, seconds)
        if done.returncode:
            raise CompileError(f"onnx-mlir {ending(done.returncode, done.stderr)}")

    def unknown_options(self, options: Sequence[str]) -> dict[str, str]:
        """Return the options that the compiler rejects as unknown, each with its suggestion.

        The compiler reports unknown options in front of ``--version``, and then prints its version.
        """
        with work_folder() as folder:
            done = self._result_of(folder, [*options, "--version"], _SECONDS)
        return {
            option: f"; did you mean {near!r}?" if near else ""
            for option, near in _UNKNOWN.findall(done.stderr)
        }

    def _result_of(
        self, folder: Path, arguments: Sequence[str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        name = f"onnxfold-{secrets.token_hex(8)}"
        with limits(seconds) as bounds:
            return isolated.run_command(
                self.command(folder, arguments, name),
                folder=folder,
                # without the variable that adds flags of the compiler
                environment={k: v for k, v in os.environ.items() if k != "ONNX_MLIR_FLAGS"},
                removal=[self.program, "rm", "--force", name] if self.image else None,
                **bounds,
            )


def find_tool() -> Tool:
    """Find the compiler. Raises a CompileError that lists the searched places."""
    named = os.environ.get(BINARY)
    path = shutil.which(named or "onnx-mlir")
    if path is None:
        if named:
            raise CompileError(f"{BINARY} is no program: {named}")
        return _container()
    path = os.path.abspath(path)  # it runs in another working directory
    try:
        version = " ".join(_ask([path, "--version"]).split())
    except CompileError as error:
        raise CompileError(f"{path} does not run: {error}") from error
    state = Path(path).stat()
    return Tool(path, f"{version} ({state.st_size} bytes, {state.st_mtime_ns})")


def _container() -> Tool:
    if not IS_LINUX:
        raise CompileError(f"the image's libraries run on Linux only; set {BINARY} to a binary")
    named = os.environ.get(ENGINE)
    names = [named] if named else list(_ENGINES)
    found = [(name, os.path.abspath(path)) for name in names if (path := shutil.which(name))]
    if not found:
        wanted = f"{ENGINE} is no program: {named}" if named else "no docker, podman"
        raise CompileError(
            f"onnx-mlir is not on the PATH, and there is no container engine ({wanted}); install "
            f"one and run 'docker pull {UPSTREAM_IMAGE}', or set {BINARY} to the compiler"
        )
    image = os.environ.get(IMAGE) or UPSTREAM_IMAGE
    reasons = []
    for name, engine in found:
        try:
            digest = _ask([engine, "image", "inspect", "--format={{.Id}}", image]).strip()
        except CompileError as error:
            reasons.append(f"{name}: {error}")
        else:
            digest = digest if ":" in digest else f"sha256:{digest}"
            return Tool(engine, image=digest, options=_options(engine))
    raise CompileError(
        f"onnx-mlir is not on the PATH, and its image is missing ({'; '.join(reasons)}); get it "
        f"with '{found[0][0]} pull {image}'"
    )


def _options(engine: str) -> tuple[str, ...]:
    """Return engine options for the current user, access to a folder, and limited memory."""
    user, group = user_and_group()
    here = f"--user={user}:{group}"
    if Path(engine).name.startswith("podman"):
        # a rootless engine maps user ids; SELinux requires labels for folders; containers inherit
        # the limits of the client, and do not support their own everywhere
        keep = ["--userns=keep-id"] if user else []
        return (*keep, "--security-opt=label=disable", here)
    memory = f"--memory={memory_limit()}"
    if user:
        # a rootless docker maps the current user to root
        with contextlib.suppress(CompileError):
            if "rootless" in _ask([engine, "info", "--format={{.SecurityOptions}}"]):
                return (memory, "--user=0:0")
    return (memory, here)


def _ask(command: Sequence[str]) -> str:
    """Return the output of a command."""
    with limits(_SECONDS, "the answer") as bounds:
        done = isolated.run_command(command, **bounds)
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise CompileError(lines[-1][:200] if lines else f"exit code {done.returncode}")
    return done.stdout


def flags() -> list[str]:
    """Return the flags of every compilation.

    The compiler must not fold constants: its intermediate results have 64 bits, so bits differ from
    those of a runtime. For x86, the only architecture it accepts is "x86-64"; without one, the code
    is not vectorized. The conversion of float16 without a CPU instruction depends on the libraries
    loaded by the process. Code that checks inputs is disabled, as the compiler crashes on bfloat16
    there: `Library.call` checks them.
    """
    target = []
    if platform.machine() in _X86:
        target = [f"--march={_BASELINE}"]
        if _LEVEL in cpu_levels():
            target.append(f"{_TARGET}={_LEVEL}")
    return ["-O3", *target, "--disable-constant-prop", "--verifyInputTensors=false"]


def arguments(given: Sequence[str], mode: str, tag: str, folder: Path, name: str) -> list[str]:
    """Return the arguments for a file ``NAME.so`` or ``NAME.onnx.mlir``, depending on the mode."""
    return [*given, mode, f"--tag={tag}", "-o", str(folder / name), str(folder / MODEL)]


class OnnxMlir:
    """The backend, see `onnxfold.runtime.backends.base.Backend`."""

    name = "onnx-mlir"
    target_option = _TARGET

    def __init__(self, options: Sequence[str] = ()) -> None:
        refuse_accelerators(options, _ON_CPUS)
        self._flags = with_options(flags(), options)
        names = {option.lstrip("-").partition("=")[0] for option in options}
        names.discard(_TARGET.lstrip("-"))
        has_features = any(name.startswith("m") for name in names)  # -mattr, -march, -mtriple
        target_cpu = value_of(_TARGET, self._flags)
        if target_cpu is None and platform.machine() in _X86:
            target_cpu = _BASELINE
        if has_features:
            self._cpu = cpu_key(None)
        else:  # on other architectures, the compiler targets the baseline by default
            self._cpu = "" if target_cpu is None else cpu_key(target_cpu)

    @cached_property
    def _tool(self) -> Tool:
        return find_tool()

    def missing(self) -> str | None:
        """Return the reason why onnx-mlir cannot compile here; None if it can."""
        try:
            self._tool  # noqa: B018  looks for it
        except CompileError as error:
            return str(error)
        return None

    def supported(self, model: Any) -> list[str]:
        """Return the reasons why the model cannot be compiled; the compiler rejects other ops."""
        import onnx_ir as ir  # not needed to run kernels

        taken = {ir.DataType.from_numpy(dtype) for dtype in NUMBERS}
        taken -= {ir.DataType.INT4, ir.DataType.UINT4}  # not supported by the compiler
        return reasons_against(model, self.name, lambda value: value.dtype in taken)

    def key_of(self, graph: str) -> dict[str, str]:
        """Return the source and target of a kernel, see `Backend.key_of`."""
        return {
            "graph": graph,
            "backend": self.name,
            "maker": self._tool.identity,
            "machine": _machine(),
            "cpu": self._cpu,
            "flags": " ".join(self._flags),
        }

    def unknown_options(self, options: Sequence[str]) -> dict[str, str]:
        """Return the options that the compiler does not have, each with a suggestion."""
        return self._tool.unknown_options(options)

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Compile a model to a library, whose symbols have the name of the target as their tag."""
        name = target.name
        made = self._made(content, "--EmitLib", name, name, ".so", target.parent, seconds)
        return Built([made], f"run_main_graph_{name}")

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> None:
        """Write the model in the ONNX dialect, in lower dialects and in LLVM's."""
        for stage, mode in STAGES.items():
            self._made(content, mode, "NONE", stage, ".onnx.mlir", folder, seconds)

    def _made(
        self, content: bytes, mode: str, tag: str, name: str, suffix: str, to: Path, seconds: float
    ) -> Path:
        """Write a file from a model with the compiler, and move it to a folder."""
        with work_folder() as folder:
            (folder / MODEL).write_bytes(content)
            self._tool.run(folder, arguments(self._flags, mode, tag, folder, name), seconds)
            made = folder / f"{name}{suffix}"
            if not made.is_file():
                raise CompileError(f"onnx-mlir wrote no {made.name}")
            return Path(shutil.move(made, to / f"{name}{made.suffix}"))

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Return the reason why a stored kernel with this key cannot run here; None if it can."""
        if key.get("machine") != _machine():
            return f"the kernel was made for {key.get('machine')}, this is {_machine()}"
        cpu = key.get("cpu", "")
        return unusable_cpu(cpu) if cpu else None

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Return a kernel of a stored library; see `Backend.load`."""
        file = folder / str(kernel.file)
        library = Library(file)
        library.require(kernel.function)
        fixed = [np.asarray(weights[name]) for name in kernel.weights]
        # functions are not documented to be thread-safe
        lock = THIS_PROCESS.shared(_LibraryLocks).setdefault(str(file), forks.Lock())

        def run(values: Values) -> dict[str, Any]:
            given = [array_of(values[name]) for name in kernel.inputs]
            with lock:
                results = library.call(kernel.function, [*given, *fixed])
            if len(results) != len(kernel.outputs):
                raise CompileError(f"it has {len(results)} results, not {len(kernel.outputs)}")
            return dict(zip(kernel.outputs, results, strict=True))

        return run


class _LibraryLocks(dict[str, forks.Lock]):
    """A lock for each library, by its path; all of its calls hold it."""


def _machine() -> str:
    return system_and_machine()
