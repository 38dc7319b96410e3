"""A complete but slow backend, which runs kernels with onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onnxfold.runtime.backends.base import Built, CompileError, Run, Values
from onnxfold.runtime.bundles.manifest import Kernel


def as_array(value: Any) -> Any:
    """Return a NumPy array for an array or an OrtValue."""
    return value.numpy() if hasattr(value, "numpy") else value


class Reference:
    """A backend. See `onnxfold.runtime.backends.base.Backend`."""

    name = "reference"

    def missing(self) -> str | None:
        """Return None, because the evaluator is part of onnx."""
        return None

    def supported(self, model: ir.Model) -> list[str]:
        """Return the reasons to reject a model."""
        return ["the model is too large to evaluate"] if model.graph.num_nodes() > 100 else []

    def key_of(self, graph: str) -> dict[str, str]:
        """Return the cache key of a kernel, which includes the version of onnx."""
        return {"graph": graph, "backend": self.name, "maker": onnx.__version__}

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Write the model if the evaluator supports its ops."""
        try:
            ReferenceEvaluator(onnx.load_model_from_string(content))
        except Exception as error:  # the evaluator raises errors of many classes
            raise CompileError(str(error)) from error
        file = target.with_suffix(".onnx")
        file.write_bytes(content)
        return Built([file], "")

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> None:
        """Write no files, because there are no stages between the model and the kernel."""

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Return None, because kernels run on all machines."""
        return None

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Return a function from inputs by name to outputs by name."""
        evaluator = ReferenceEvaluator(onnx.load(folder / str(kernel.file)))
        input_names = evaluator.input_names

        def run(values: Values) -> dict[str, Any]:
            operands = [values[name] for name in kernel.inputs]
            operands += [weights[name] for name in kernel.weights]
            arrays = map(as_array, operands)
            outputs = evaluator.run(None, dict(zip(input_names, arrays, strict=True)))
            return dict(zip(kernel.outputs, outputs, strict=True))

        return run
