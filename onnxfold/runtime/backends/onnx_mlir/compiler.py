"""Running the compiler: its flags, its time limit, and what its exit codes mean."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.cpu import cpu_level
from onnxfold.runtime.backends.onnx_mlir.tool import Container, Tool
from onnxfold.runtime.backends.process import last_words, one_line

MODEL = "model.onnx"

STAGES = {"1-onnx": "--EmitONNXIR", "2-mlir": "--EmitMLIR", "3-llvm": "--EmitLLVMIR"}
"""What can be written on the way to a library, by the names of the files."""

# From the header of onnx-mlir's own compiler driver.
_MEANINGS = {
    2: "it does not take the file for a model",
    3: "it cannot open the model",
    4: "it cannot write its result",
    5: "it cannot write a temporary file",
    6: "it does not take the model for valid ONNX",
    7: "it cannot lower the model to LLVM",
    8: "LLVM's optimizer failed",
    9: "LLVM's code generator failed",
    12: "the linker failed",
    13: "it does not take its options",
    14: "it cannot compile the model",
    15: "the compiler died",
    16: "it does not find a program that it needs",
    17: "it cannot execute a program that it needs",
    18: "a program that it needs failed",
    19: "the model is a hard link",
}
_ENGINE_MEANINGS = {
    125: "the container engine failed",
    126: "the image's compiler cannot be executed",
    127: "there is no onnx-mlir in the image",
}


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
        raise CompileError(failure(done.returncode, done.stderr, isinstance(tool, Container)))


def failure(code: int, stderr: str, contained: bool = False) -> str:
    """What an exit code and standard error say, in one line."""
    killed_by = -code if code < 0 else code - 128 if code > 128 else 0
    if killed_by:
        return f"onnx-mlir crashed (signal {killed_by}){last_words(stderr)}"
    meanings = {**_MEANINGS, **(_ENGINE_MEANINGS if contained else {})}
    meaning = meanings.get(code, "it failed")
    lines = [line for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    detail = f": {one_line((telling or lines)[0])}" if lines else ""
    return f"onnx-mlir: {meaning} (exit code {code}){detail}"
