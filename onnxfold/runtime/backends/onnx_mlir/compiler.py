"""Running the compiler: its flags, its time limit, and what its exit codes mean."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.cpu import cpu_level
from onnxfold.runtime.backends.onnx_mlir.tool import Tool
from onnxfold.runtime.backends.process import ending

MODEL = "model.onnx"

STAGES = {"1-onnx": "--EmitONNXIR", "2-mlir": "--EmitMLIR", "3-llvm": "--EmitLLVMIR"}
"""What can be written on the way to a library, by the names of the files."""


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
    """Arguments for a shared library ``NAME.so``; the name is the tag of its symbols, too."""
    output = ["--EmitLib", f"--tag={name}", "-o", str(folder / name)]
    return [*given, *output, str(folder / MODEL)]


def stage_arguments(folder: Path, stage: str, given: Sequence[str]) -> list[str]:
    """Arguments for one of `STAGES`, which writes ``STAGE.onnx.mlir``."""
    return [*given, STAGES[stage], "--tag=NONE", "-o", str(folder / stage), str(folder / MODEL)]


def run_tool(tool: Tool, folder: Path, arguments: Sequence[str], seconds: float) -> None:
    """Run the compiler on files of a `work_folder`.

    Raises:
        CompileError: It fails, crashes, or takes longer than ``seconds``.
    """
    done = tool.run(folder, arguments, seconds)
    if done.returncode:
        raise CompileError(f"onnx-mlir {ending(done.returncode, done.stderr)}")
