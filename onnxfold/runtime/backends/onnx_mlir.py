"""The backend onnx-mlir, which compiles a model to a shared library ahead of time.

The compiler is a binary or a container image. A binary has precedence. The binary is the program in
the environment variable ``ONNXFOLD_ONNX_MLIR`` or, if the variable is not set, ``onnx-mlir`` on the
PATH. The image is the one in ``ONNXFOLD_ONNX_MLIR_IMAGE`` or, by default, the upstream image.
The engine is the program in ``ONNXFOLD_CONTAINER_ENGINE`` or, by default, docker or podman. Images
are never pulled. They are run by their digests, because a tag may refer to another image later.
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
"""The upstream image. It has no versions: its tag "latest" is the current main branch."""

MODEL = "model.onnx"
"""The file name of the model to compile."""

STAGES = {"1-onnx": "--EmitONNXIR", "2-mlir": "--EmitMLIR", "3-llvm": "--EmitLLVMIR"}
"""Compiler flags of the stages of compilation, by the names of the files for `dump`."""

_TARGET = "--mcpu"
_X86 = ("x86_64", "AMD64")
_BASELINE = "x86-64"
_LEVEL = "x86-64-v3"  # the highest CPU level for which kernels were measured
_CPU_VALUES: dict[str, tuple[str, ...]] = {"maccel": ()}
"""Options that select an accelerator, with their values for CPUs."""

_UNKNOWN_OPTION = re.compile(
    r"Unknown command line argument '([^']*)'[^\n]*(?:\n[^\n]*Did you mean '([^']*)'\?)?"
)
"""LLVM's message about an unknown option. A message about the most similar option may follow."""

_ENGINES = ("docker", "podman")
_QUERY_SECONDS = 30.0  # time limit for commands that query an engine or a binary


@dataclass(frozen=True)
class Tool:
    """The compiler: a binary, or a container image with an engine to run it.

    Attributes:
        program: The path of the binary or of the engine.
        version: The version of the binary with its size and modification time; "" for an image.
        image: The digest of the image; "" for a binary.
        options: Options for the engine, see `_engine_options`. Empty for a binary.
    """

    program: str
    version: str = ""
    image: str = ""
    options: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """The digest of the image, or the version of the binary, for cache keys."""
        return f"image {self.image}" if self.image else f"binary {self.version}"

    def command(self, folder: Path, arguments: Sequence[str], name: str) -> list[str]:
        """Return the command line for a run of the compiler.

        A container runs as the current user and without network. The container can access only the
        given folder.

        Args:
            folder: The folder of the input and output files.
            arguments: The arguments of the compiler.
            name: The name of the container. It has no effect for a binary.
        """
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
            # the compiler is process 1 of the container, and process 1 ignores other signals
            "--stop-signal=KILL",
            "--sig-proxy=false",
            *self.options,
            f"--mount={mount.getvalue()}",
            f"--workdir={folder}",
            # some images start the compiler by default, and other images start a shell
            "--entrypoint=onnx-mlir",
            self.image,
            *arguments,
        ]

    def run(self, folder: Path, arguments: Sequence[str], seconds: float) -> None:
        """Run the compiler on files of a `work_folder`.

        Args:
            folder: The path of the `work_folder`.
            arguments: The arguments of the compiler.
            seconds: Time limit in seconds.

        Raises:
            CompileError: The compiler fails or exceeds the time limit.
        """
        result = self._result_of(folder, arguments, seconds)
        if result.returncode:
            raise CompileError(f"onnx-mlir {ending(result.returncode, result.stderr)}")

    def unknown_options(self, options: Sequence[str]) -> dict[str, str]:
        """Return the options that the compiler rejects as unknown, each with a suggestion or "".

        The compiler runs with ``--version`` and compiles nothing. It reports unknown options before
        it prints its version.

        Raises:
            CompileError: The compiler cannot be run, or exceeds the time limit.
        """
        with work_folder() as folder:
            result = self._result_of(folder, [*options, "--version"], _QUERY_SECONDS)
        return {
            option: f"; did you mean {nearest!r}?" if nearest else ""
            for option, nearest in _UNKNOWN_OPTION.findall(result.stderr)
        }

    def _result_of(
        self, folder: Path, arguments: Sequence[str], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        name = f"onnxfold-{secrets.token_hex(8)}"
        with limits(seconds) as bounds:
            return isolated.run_command(
                self.command(folder, arguments, name),
                folder=folder,
                # the compiler would add the flags in this variable
                environment={k: v for k, v in os.environ.items() if k != "ONNX_MLIR_FLAGS"},
                removal=[self.program, "rm", "--force", name] if self.image else None,
                **bounds,
            )


def find_tool() -> Tool:
    """Find the compiler: a binary, or without a binary, an image and an engine.

    Raises:
        CompileError: No compiler is installed, or the compiler does not run. The message suggests
            a remedy.
    """
    binary = os.environ.get(BINARY)
    path = shutil.which(binary or "onnx-mlir")
    if path is None:
        if binary:
            raise CompileError(f"{BINARY} is not a program: {binary}")
        return _find_image()
    path = os.path.abspath(path)  # the compiler runs in another working directory
    try:
        version = " ".join(_output_of([path, "--version"]).split())
    except CompileError as error:
        raise CompileError(f"{path} does not run: {error}") from error
    state = Path(path).stat()
    return Tool(path, f"{version} ({state.st_size} bytes, {state.st_mtime_ns})")


def _find_image() -> Tool:
    if not IS_LINUX:
        raise CompileError(
            f"libraries compiled by the container image run on Linux only; set {BINARY} to the "
            "compiler"
        )
    selected = os.environ.get(ENGINE)
    names = [selected] if selected else list(_ENGINES)
    found = [(name, os.path.abspath(path)) for name in names if (path := shutil.which(name))]
    if not found:
        missing = f"{ENGINE} is not a program: {selected}"
        problem = missing if selected else "there is no container engine"
        raise CompileError(
            f"onnx-mlir is not on the PATH, and {problem}; install docker or podman and run "
            f"'docker pull {UPSTREAM_IMAGE}', or set {BINARY} to the compiler"
        )
    image = os.environ.get(IMAGE) or UPSTREAM_IMAGE
    reasons = []
    for name, engine in found:
        try:
            digest = _output_of([engine, "image", "inspect", "--format={{.Id}}", image]).strip()
        except CompileError as error:
            reasons.append(f"{name}: {error}")
        else:
            digest = digest if ":" in digest else f"sha256:{digest}"
            return Tool(engine, image=digest, options=_engine_options(engine))
    raise CompileError(
        "onnx-mlir is not on the PATH, and its container image is missing: "
        f"{'; '.join(reasons)}; get the image with '{found[0][0]} pull {image}'"
    )


def _engine_options(engine: str) -> tuple[str, ...]:
    """Return options that make an engine run a container as the current user.

    With these options, the container can access a folder of the user, and its memory is limited.
    """
    user, group = user_and_group()
    current_user = f"--user={user}:{group}"
    if Path(engine).name.startswith("podman"):
        # A rootless engine maps user ids. SELinux would require labels for the folder. podman does
        # not support memory limits everywhere, but its containers inherit the limits of the client.
        keep = ["--userns=keep-id"] if user else []
        return (*keep, "--security-opt=label=disable", current_user)
    memory = f"--memory={memory_limit()}"
    if user:
        # a rootless docker maps the current user to root
        with contextlib.suppress(CompileError):
            if "rootless" in _output_of([engine, "info", "--format={{.SecurityOptions}}"]):
                return (memory, "--user=0:0")
    return (memory, current_user)


def _output_of(command: Sequence[str]) -> str:
    """Return the standard output of a command.

    Raises:
        CompileError: The command cannot be run, fails, or exceeds the time limit.
    """
    with limits(_QUERY_SECONDS, "the answer") as bounds:
        result = isolated.run_command(command, **bounds)
    if result.returncode:
        printed = result.stderr or result.stdout
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        raise CompileError(lines[-1][:200] if lines else f"exit code {result.returncode}")
    return result.stdout


def flags() -> list[str]:
    """Return the flags of every compilation.

    The compiler must not fold constants. It would compute them with 64 bits, so the results would
    differ from those of a runtime.

    For x86, the only accepted value of ``--march`` is "x86-64". Without this flag, the code is not
    vectorized. The flag ``--mcpu`` selects the level x86-64-v3 if this CPU has it, because the
    level has instructions that convert float16. Without these instructions, the conversion depends
    on the libraries that the process has loaded.

    The checks of inputs are disabled, because the compiler crashes if it generates them for
    bfloat16. Callers check the inputs with `loading.check_inputs` instead.
    """
    target = []
    if platform.machine() in _X86:
        target = [f"--march={_BASELINE}"]
        if _LEVEL in cpu_levels():
            target.append(f"{_TARGET}={_LEVEL}")
    return ["-O3", *target, "--disable-constant-prop", "--verifyInputTensors=false"]


def arguments(options: Sequence[str], mode: str, tag: str, folder: Path, name: str) -> list[str]:
    """Return the arguments that compile the model in a folder to another file in the folder.

    Args:
        options: Options of the compiler.
        mode: The flag that selects the form of the output, and its suffix: ``.so`` for
            ``--EmitLib``, and ``.onnx.mlir`` for the flags in `STAGES`.
        tag: The end of the names of symbols in the output, or "NONE".
        folder: The folder that contains `MODEL`.
        name: The name of the output without suffix.
    """
    return [*options, mode, f"--tag={tag}", "-o", str(folder / name), str(folder / MODEL)]


class OnnxMlir:
    """The backend, see `onnxfold.runtime.backends.base.Backend`."""

    name = "onnx-mlir"
    target_option = _TARGET

    def __init__(self, options: Sequence[str] = ()) -> None:
        refuse_accelerators(options, _CPU_VALUES)
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
            self._tool  # noqa: B018  searches for the compiler
        except CompileError as error:
            return str(error)
        return None

    def supported(self, model: Any) -> list[str]:
        """Return the reasons why the model cannot be compiled, or an empty list.

        There is no reason for an unsupported op of ONNX, because the compiler rejects such ops.
        """
        import onnx_ir as ir  # not needed to run kernels

        supported = {ir.DataType.from_numpy(dtype) for dtype in NUMBERS}
        supported -= {ir.DataType.INT4, ir.DataType.UINT4}  # not supported by the compiler
        return reasons_against(model, self.name, lambda value: value.dtype in supported)

    def key_of(self, graph: str) -> dict[str, str]:
        """Return the cache key of the kernel for a model, see `Backend.key_of`."""
        return {
            "graph": graph,
            "backend": self.name,
            "maker": self._tool.identity,
            "machine": _machine(),
            "cpu": self._cpu,
            "flags": " ".join(self._flags),
        }

    def unknown_options(self, options: Sequence[str]) -> dict[str, str]:
        """Return the options that the compiler does not have, see `Tool.unknown_options`."""
        return self._tool.unknown_options(options)

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Compile a model to a shared library, see `Backend.compile`.

        The names of the symbols in the library end with the name of the file.
        """
        name = target.name
        file = self._compile_to(content, "--EmitLib", name, name, ".so", target.parent, seconds)
        return Built([file], f"run_main_graph_{name}")

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> None:
        """Write the model in MLIR's ONNX dialect, in lower dialects, and in the LLVM dialect.

        The time limit applies to each of these stages, see `Backend.dump`.
        """
        for stage, mode in STAGES.items():
            self._compile_to(content, mode, "NONE", stage, ".onnx.mlir", folder, seconds)

    def _compile_to(
        self, content: bytes, mode: str, tag: str, name: str, suffix: str, to: Path, seconds: float
    ) -> Path:
        """Compile a model to a file, and return the path of the file.

        Args:
            content: The serialized model.
            mode: See `arguments`.
            tag: See `arguments`.
            name: The name of the file without suffix.
            suffix: The suffix of the compiler's output. Only its last part remains in the result.
            to: The folder for the file.
            seconds: Time limit in seconds.

        Raises:
            CompileError: The compiler fails, writes no file, or exceeds the time limit.
        """
        with work_folder() as folder:
            (folder / MODEL).write_bytes(content)
            self._tool.run(folder, arguments(self._flags, mode, tag, folder, name), seconds)
            output = folder / f"{name}{suffix}"
            if not output.is_file():
                raise CompileError(f"onnx-mlir did not write {output.name}")
            return Path(shutil.move(output, to / f"{name}{output.suffix}"))

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Return the reason why a stored kernel with this key cannot run here; None if it can."""
        if key.get("machine") != _machine():
            machine = key.get("machine")
            return f"the kernel was compiled for {machine}, and this machine is {_machine()}"
        cpu = key.get("cpu", "")
        return unusable_cpu(cpu) if cpu else None

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Load a kernel from a library, see `Backend.load`."""
        file = folder / str(kernel.file)
        library = Library(file)
        library.require(kernel.function)
        weight_arrays = [np.asarray(weights[name]) for name in kernel.weights]
        # onnx-mlir does not document that the functions are thread-safe
        lock = THIS_PROCESS.shared(_LibraryLocks).setdefault(str(file), forks.Lock())

        def run(values: Values) -> dict[str, Any]:
            inputs = [array_of(values[name]) for name in kernel.inputs]
            with lock:
                results = library.call(kernel.function, [*inputs, *weight_arrays])
            if len(results) != len(kernel.outputs):
                raise CompileError(
                    f"the kernel has {len(results)} results, not {len(kernel.outputs)}"
                )
            return dict(zip(kernel.outputs, results, strict=True))

        return run


class _LibraryLocks(dict[str, forks.Lock]):
    """Locks by the path of a library. Each call of a kernel holds the lock of its library."""


def _machine() -> str:
    return system_and_machine()
