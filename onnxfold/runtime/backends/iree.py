"""IREE: MLIR ahead of time to a module for this machine's CPU, from pip wheels."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.runtime.backends.base import (
    FUNCTION,
    Built,
    Compiled,
    CompileError,
    Kernel,
    Values,
)
from onnxfold.runtime.backends.process import one_line, run_child

SUFFIX = ".vmfb"

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

    def maker(self) -> str:
        """The version of the compiler."""
        return _version("iree-base-compiler")

    def compile(
        self, content: bytes, arrays: Sequence[Any] | None, target: Path, *, seconds: float
    ) -> Built:
        """Compile a model in a child process, and try it there; see `Backend.compile`."""
        foreign = [array.dtype.name for array in arrays or () if array.dtype.isbuiltin != 1]
        if foreign:  # it computes them with another rounding
            raise CompileError(f"IREE is not given {foreign[0]}")
        with tempfile.TemporaryDirectory(prefix="onnxfold-iree-") as name:
            folder = Path(name)
            (folder / "model.onnx").write_bytes(content)
            (folder / "flags.json").write_text(json.dumps(FLAGS))
            if arrays is not None:
                np.savez(folder / "feeds.npz", **{f"{k:04}": a for k, a in enumerate(arrays)})
            run_child([*_COMMAND, name], seconds)
            results: list[Any] = []
            if arrays is not None:
                with np.load(folder / "results.npz") as stored:
                    results = [stored[key] for key in stored.files]
            file = target.with_suffix(SUFFIX)
            shutil.move(folder / "kernel.vmfb", file)
            return Built([file], FUNCTION, results)

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> list[Path]:
        """Write the model as imported, in lower dialects, and the code of each kernel."""
        with tempfile.TemporaryDirectory(prefix="onnxfold-iree-") as name:
            scratch = Path(name)
            (scratch / "model.onnx").write_bytes(content)
            (scratch / "flags.json").write_text(json.dumps(FLAGS))
            run_child([*_COMMAND, name, "dump"], seconds)
            made = sorted((scratch / "stages").iterdir())
            return [Path(shutil.move(path, folder / path.name)) for path in made]

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Why a stored kernel with this key cannot be run here, or None."""
        here = target()
        if not here["iree"]:
            return "iree-base-runtime is not installed"
        for what, name in (("cpu", "CPU"), ("iree", "version of IREE")):
            if key.get(what) != here[what]:
                return f"the kernel was made for another {name}"
        return None

    def load(self, compiled: Compiled, weights: Values) -> Kernel:
        """A kernel of a stored module.

        Raises:
            CompileError: The module does not load here.
        """
        from onnxfold.runtime.backends.iree_module import Module, aligned
        from onnxfold.runtime.values import arrays_of

        try:
            module = Module(compiled.file.read_bytes(), compiled.function)
        except OSError as error:
            raise CompileError(f"{compiled.file.name}: {error.strerror}") from error
        except Exception as error:  # IREE raises RuntimeError, ValueError and others
            raise CompileError(one_line(str(error))) from error
        fixed = [aligned(np.asarray(weights[name])) for name in compiled.weights]
        dtypes = [_numpy_dtype(name) for name in compiled.dtypes]

        def kernel(values: Values) -> dict[str, Any]:
            given = arrays_of(values, compiled.inputs)
            results = module([*given, *fixed])
            return {
                name: result.view(dtype)
                for name, result, dtype in zip(compiled.outputs, results, dtypes, strict=True)
            }

        return kernel


_COMMAND = [sys.executable, "-m", "onnxfold.runtime.backends.iree_child"]


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
