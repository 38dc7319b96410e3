"""IREE: MLIR ahead of time to a module for this machine's CPU, from pip wheels."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.runtime.backends.base import Compiled, CompileError, Kernel, Values

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-input-type=onnx",
    # the default computes float64 as float32
    "--iree-input-demote-f64-to-f32=false",
    # O2 without data tiling makes products slower than no optimization
    "--iree-opt-level=O2",
    "--iree-dispatch-creation-data-tiling",
)

# Ops that IREE does not compile, or compiles to something else.
DENIED = frozenset(
    (
        "Attention",
        "BitCast",
        "CausalConvWithState",
        "CastLike",
        "Col2Im",
        "Compress",
        "CumProd",
        "DFT",
        "DeformConv",
        "FlexAttention",
        "GRU",
        "GridSample",
        "ImageDecoder",
        "LinearAttention",
        "LabelEncoder",
        "Loop",
        "MaxUnpool",
        "Multinomial",
        "NonMaxSuppression",
        "QLinearMatMul",
        "RMSNormalization",
        "Range",
        "Resize",
        "RoiAlign",
        "RotaryEmbedding",
        "Scan",
        "SequenceAt",
        "SoftmaxCrossEntropyLoss",
        "SpaceToDepth",
        "SwiGLU",
        "TensorScatter",
        "TreeEnsemble",
        "Unique",
        "Upsample",
    )
)
_DTYPES = frozenset(
    (
        "float",
        "double",
        "float16",
        "bfloat16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    )
)


class Iree:
    """The backend, see `onnxfold.runtime.backends.base.Backend`."""

    name = "iree"

    def missing(self) -> str | None:
        """Why nothing can be compiled here, or None."""
        for module, package in (("compiler", "compiler"), ("runtime", "runtime")):
            if not _has(f"iree.{module}"):
                return f"iree-base-{package} is not installed (pip install onnxfold[iree])"
        return None

    def supported(self, model: Any) -> list[str]:
        """Why the model is not given to the compiler; nothing if it is."""
        reasons = [
            f"IREE does not run {node.op_type}"
            for node in model.graph
            if node.op_type in DENIED or node.domain not in ("", "ai.onnx")
        ]
        values = [*model.graph.inputs, *model.graph.outputs]
        for value in values:
            dtype = None if value.dtype is None else value.dtype.name.lower()
            if dtype not in _DTYPES:
                reasons.append(f"IREE takes no {dtype} ({value.name})")
        return list(dict.fromkeys(reasons))

    def key_of(self, graph: str) -> dict[str, str]:
        """What a kernel is made of and for.

        Args:
            graph: Hash of the model.
        """
        return {"graph": graph, **target(), "flags": " ".join(FLAGS)}

    def compile(
        self, content: bytes, feeds: Mapping[str, Any], *, seconds: float
    ) -> tuple[bytes, list[Any]]:
        """Compile a model in a child process, and try it there.

        Args:
            content: The serialized model.
            feeds: Inputs to try it on; nothing to only compile it.
            seconds: Time limit.

        Returns:
            The kernel, and its results on the feeds.

        Raises:
            CompileError: It is refused, takes too long, or the child process dies.
        """
        with tempfile.TemporaryDirectory(prefix="onnxfold-iree-") as name:
            folder = Path(name)
            (folder / "model.onnx").write_bytes(content)
            (folder / "flags.json").write_text(json.dumps(FLAGS))
            if feeds:
                np.savez(folder / "feeds.npz", **feeds)
            run_child([*_COMMAND, name], seconds)
            results: list[Any] = []
            if feeds:
                with np.load(folder / "results.npz") as stored:
                    results = [stored[key] for key in stored.files]
            return (folder / "kernel.vmfb").read_bytes(), results

    def load(self, compiled: Compiled, weights: Values) -> Kernel:
        """A kernel of a stored module.

        Raises:
            CompileError: The module does not load here.
        """
        from onnxfold.runtime.backends.iree_module import Module, aligned
        from onnxfold.runtime.values import array_of

        try:
            module = Module(compiled.content, compiled.function)
        except Exception as error:  # IREE raises RuntimeError, ValueError and others
            raise CompileError(one_line(str(error))) from error
        fixed = [aligned(np.asarray(weights[name])) for name in compiled.weights]
        dtypes = [_numpy_dtype(name) for name in compiled.dtypes]

        def kernel(values: Values) -> dict[str, Any]:
            given = []
            for name in compiled.inputs:
                array = array_of(values[name])
                if array is None:
                    raise ValueError(f"{name!r} is not in the CPU's memory")
                given.append(array)
            results = module([*given, *fixed])
            return {
                name: result.view(dtype)
                for name, result, dtype in zip(compiled.outputs, results, dtypes, strict=True)
            }

        return kernel


_COMMAND = [sys.executable, "-m", "onnxfold.runtime.backends.iree_child"]


def run_child(command: Sequence[str], seconds: float) -> None:
    """Run a compiler in a process of its own.

    Raises:
        CompileError: It fails, is killed by a signal, or takes longer than ``seconds``.
    """
    folder = str(Path(__file__).parents[3])  # this package, wherever it was imported from
    path = os.pathsep.join(p for p in (folder, os.environ.get("PYTHONPATH")) if p)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise CompileError(f"the compiler took longer than {seconds:g} s") from None
    if done.returncode < 0:
        raise CompileError(f"the compiler crashed (signal {-done.returncode})")
    if done.returncode:
        raise CompileError(_reason(done.stderr))


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "Error" in line]
    return one_line((errors or lines or ["the compiler failed"])[0])


def one_line(text: str) -> str:
    """A message without its line breaks and file positions, cut to a readable length."""
    text = re.sub(r"^.*?error:\s*", "", " ".join(text.split()))
    return text if len(text) <= 200 else text[:197] + "..."


@functools.cache
def target() -> dict[str, str]:
    """What a kernel depends on besides its model: versions and the CPU."""
    return {"iree": _version("iree-base-runtime"), "cpu": cpu_features()}


@functools.cache
def cpu_features() -> str:
    """The architecture, and a hash of the CPU's features."""
    features = platform.processor()
    try:
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
        if found:
            features = " ".join(sorted(found[1].split()))
    except OSError:
        pass
    digest = hashlib.sha256(features.encode()).hexdigest()[:16]
    return f"{platform.machine()}-{digest}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
