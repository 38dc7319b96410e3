"""A backend for tests, whose kernels are models that onnxruntime runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.runtime.backends.base import Built, CompileError, Run, Values
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.support.onnxruntime_sessions import array_of, open_session, ort_value, session_options


def run_model(content: bytes, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a serialized model with onnxruntime. The arrays are in the order of the inputs."""
    session = open_session(content, session_options())
    names = [value.name for value in session.get_inputs()]
    feeds = {name: ort_value(array) for name, array in zip(names, arrays, strict=True)}
    return [array_of(value) for value in session.run_with_ort_values(None, feeds)]


class ModelBackend:
    """An implementation of the protocol `onnxfold.runtime.backends.base.Backend`."""

    name = "model"

    def missing(self) -> str | None:
        return None

    def supported(self, model: Any) -> list[str]:
        return []

    def key_of(self, graph: str) -> dict[str, str]:
        return {"graph": graph, "backend": self.name, "maker": "1"}

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        file = target.with_suffix(".onnx")
        file.write_bytes(content)
        return Built([file], "")

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> None:
        pass

    def unusable(self, key: Mapping[str, str]) -> str | None:
        return None

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        try:
            session = open_session((folder / str(kernel.file)).read_bytes(), session_options())
        except Exception as error:
            raise CompileError(str(error)) from error
        names = [value.name for value in session.get_inputs()]

        def run(values: Values) -> dict[str, Any]:
            given = {**values, **weights}
            own = [ort_value(given[name]) for name in (*kernel.inputs, *kernel.weights)]
            made = session.run_with_ort_values(None, dict(zip(names, own, strict=True)))
            return dict(zip(kernel.outputs, made, strict=True))

        return run
