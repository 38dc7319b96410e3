"""IREE: MLIR ahead of time to a module for this machine's CPU, from pip wheels."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.onnxruntime_sessions import arrays_of
from onnxfold.runtime.backends.base import (
    FUNCTION,
    Built,
    CompileError,
    Run,
    Values,
    with_options,
)
from onnxfold.runtime.backends.cpu import cpu_features
from onnxfold.runtime.backends.process import one_line, run_function
from onnxfold.runtime.bundles.manifest import Kernel

if TYPE_CHECKING:
    import onnx_ir as ir

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

DENIED = ("CastLike", "Loop", "QLinearMatMul", "Range")
"""Ops that IREE compiles to something else for some values. What it does not lower, it refuses."""


class Iree:
    """The backend, see `onnxfold.runtime.backends.base.Backend`."""

    name = "iree"

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._flags = with_options(FLAGS, options)

    def missing(self) -> str | None:
        """Return why nothing can be compiled here, or None."""
        for package in ("compiler", "runtime"):
            if not _has(f"iree.{package}"):
                return f"iree-base-{package} is not installed (pip install onnxfold[iree])"
        return None

    def supported(self, model: Any) -> list[str]:
        """Return why the model is not given to the compiler; nothing if it is."""
        reasons = [
            f"IREE does not run {node.op_type}"
            for node in model.graph
            if node.op_type in DENIED or node.domain not in ("", "ai.onnx")
        ]
        for value in (*model.graph.inputs, *model.graph.outputs):
            if not _takes(value):
                dtype = None if value.dtype is None else value.dtype.name.lower()
                reasons.append(f"IREE takes no {dtype} ({value.name})")
        return list(dict.fromkeys(reasons))

    def key_of(self, graph: str) -> dict[str, str]:
        """Return what a kernel is made of and for.

        Args:
            graph: Hash of the model.
        """
        return {"graph": graph, **target(), "flags": " ".join(self._flags)}

    def maker(self) -> str:
        """Return the version of the compiler."""
        return _version("iree-base-compiler")

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Compile a model in a child process; see `Backend.compile`."""
        _, (module,) = _in_child("compile_model", content, {"flags": self._flags}, seconds)
        file = target.with_suffix(SUFFIX)
        file.write_bytes(module.tobytes())
        return Built([file], FUNCTION)

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> list[Path]:
        """Write the model as imported, in lower dialects, and the code of each kernel."""
        before = {*folder.iterdir()}
        request = {"flags": self._flags, "folder": str(folder.resolve())}
        _in_child("dump_stages", content, request, seconds)
        return sorted({*folder.iterdir()} - before)

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Return why a stored kernel with this key cannot be run here, or None."""
        here = target()
        if not here["iree"]:
            return "iree-base-runtime is not installed"
        for what, name in (("cpu", "CPU"), ("iree", "version of IREE")):
            if key.get(what) != here[what]:
                return f"the kernel was made for another {name}"
        return None

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Return a kernel of a stored module.

        Raises:
            CompileError: The module does not load here.
        """
        from onnxfold.runtime.backends.iree_module import Module

        file = folder / str(kernel.file)
        try:
            fixed = [np.asarray(weights[name]) for name in kernel.weights]
            module = Module(file.read_bytes(), kernel.function, fixed)
        except OSError as error:
            raise CompileError(f"{file.name}: {error.strerror}") from error
        except Exception as error:  # IREE raises RuntimeError, ValueError and others
            raise CompileError(one_line(str(error))) from error
        dtypes = [_numpy_dtype(name) for name in kernel.dtypes]

        def run(values: Values) -> dict[str, Any]:
            results = module(arrays_of(values, kernel.inputs))
            return {
                name: result.view(dtype)
                for name, result, dtype in zip(kernel.outputs, results, dtypes, strict=True)
            }

        return run


def _in_child(
    function: str, content: bytes, request: Mapping[str, Any], seconds: float
) -> tuple[Any, list[Any]]:
    """Have a function of another process work on a model."""
    arrays = [np.frombuffer(content, np.uint8)]
    place = f"onnxfold.runtime.backends.iree_child:{function}"
    return run_function(place, request, arrays, seconds)


@functools.cache
def target() -> dict[str, str]:
    """Return what a kernel depends on besides its model: versions and the CPU."""
    return {"iree": _version("iree-base-runtime"), "cpu": cpu_features()}


def _takes(value: ir.Value) -> bool:
    """Return whether it has the type: of the numbers that NumPy itself has, all but complex ones.

    Results may be of bfloat16, too; operands are computed with another rounding.
    """
    name = "undefined" if value.dtype is None else value.dtype.name.lower()
    if name in ("undefined", "bfloat16"):
        return name == "bfloat16" and not value.is_graph_input()
    assert value.dtype is not None
    return value.dtype.numpy().kind in "biuf"


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
