"""The backend: compiling by the tool, loading through the C API."""

from __future__ import annotations

import functools
import platform
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
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
    foreign_ops,
    with_options,
)
from onnxfold.runtime.backends.onnx_mlir.library import NUMBERS, Library, LibraryError
from onnxfold.runtime.backends.onnx_mlir.tool import (
    MODEL,
    STAGES,
    Tool,
    find_tool,
    flags,
    library_arguments,
    stage_arguments,
)
from onnxfold.runtime.backends.process import work_folder
from onnxfold.runtime.bundles.manifest import Kernel

SUFFIX = ".so"


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
        reasons = foreign_ops(model, self.name)
        for value in (*model.graph.inputs, *model.graph.outputs):
            if value.dtype not in taken:
                name = "None" if value.dtype is None else value.dtype.name.lower()
                reasons.append(f"onnx-mlir takes no {name} ({value.name})")
        return list(dict.fromkeys(reasons))

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
        with work_folder() as folder:
            (folder / MODEL).write_bytes(content)
            self._tool.run(folder, library_arguments(folder, name, self._flags), seconds)
            library = folder / f"{name}{SUFFIX}"
            if not library.is_file():
                raise CompileError(f"onnx-mlir wrote no {library.name}")
            made = Path(shutil.move(library, target.parent / library.name))
        return Built([made], f"run_main_graph_{name}")

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> list[Path]:
        """Write the model in the ONNX dialect, in lower dialects and in LLVM's."""
        written = []
        with work_folder() as scratch:
            (scratch / MODEL).write_bytes(content)
            for stage in STAGES:
                arguments = stage_arguments(scratch, stage, self._flags)
                self._tool.run(scratch, arguments, seconds)
                made = scratch / f"{stage}.onnx.mlir"
                if not made.is_file():
                    raise CompileError(f"onnx-mlir wrote no {made.name}")
                written.append(Path(shutil.move(made, folder / f"{stage}.mlir")))
        return written

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
        lock = _lock_of(str(file))

        def run(values: Values) -> dict[str, Any]:
            given = [array_of(values[name]) for name in kernel.inputs]
            with lock:
                results = library.call(kernel.function, [*given, *fixed])
            if len(results) != len(kernel.outputs):
                raise LibraryError(f"it has {len(results)} results, not {len(kernel.outputs)}")
            return dict(zip(kernel.outputs, results, strict=True))

        return run


@functools.cache
def _lock_of(library: str) -> threading.Lock:
    """Return the lock of all calls of a library, which a process loads once."""
    return threading.Lock()


def _machine() -> str:
    return f"{sys.platform}-{platform.machine()}"
