"""onnxruntime as a backend: what every kernel is compared with, and what takes over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.onnxruntime_sessions import (
    array_of,
    message_of,
    open_session,
    ort_value,
    session_options,
)
from onnxfold.runtime.backends.base import Built, CompileError, Run, Values
from onnxfold.runtime.bundles.manifest import Kernel

if TYPE_CHECKING:
    import onnxruntime

SUFFIX = ".onnx"


class Onnxruntime:
    """The backend, see `onnxfold.runtime.backends.base.Backend`: its kernel is the model itself.

    Only onnxruntime's CPU provider is used. A time limit has no effect: nothing is compiled.
    """

    name = "onnxruntime"

    def missing(self) -> str | None:
        """None: it is always there."""
        return None

    def maker(self) -> str:
        """Return the version of onnxruntime."""
        return metadata.version("onnxruntime")

    def supported(self, model: Any) -> list[str]:
        """Nothing: what it does not run, opening the model tells."""
        return []

    def key_of(self, graph: str) -> dict[str, str]:
        """Return the model; any version of onnxruntime runs it."""
        return {"graph": graph, "backend": self.name}

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Write the model, if onnxruntime opens it; see `Backend.compile`."""
        _open(content)
        file = target.with_suffix(SUFFIX)
        file.write_bytes(content)
        return Built([file], "")

    def runner(self, model: bytes | Path) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a function that runs a model, serialized or in a file.

        It takes arrays in the order of the model's inputs, returns arrays, and raises CompileError
        if the model does not run.

        Raises:
            CompileError: The model does not open.
        """
        session = _open(model)
        names = [value.name for value in session.get_inputs()]

        def run(arrays: Sequence[Any]) -> list[Any]:
            if len(names) != len(arrays):
                raise CompileError(f"the model has {len(names)} inputs, not {len(arrays)}")
            try:
                feeds = {name: ort_value(array) for name, array in zip(names, arrays, strict=True)}
                return [array_of(value) for value in session.run_with_ort_values(None, feeds)]
            except Exception as error:  # onnxruntime raises many classes without a common base
                raise CompileError(f"onnxruntime: {message_of(error)}") from error

        return run

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> list[Path]:
        """Nothing: there are no stages."""
        return []

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """None: a model can be run everywhere."""
        return None

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Return a kernel of a stored model.

        Raises:
            CompileError: The model cannot be opened.
        """
        file = folder / str(kernel.file)
        try:
            session = _open(file.read_bytes())
        except OSError as error:
            raise CompileError(f"{file.name}: {error.strerror}") from error
        names = [value.name for value in session.get_inputs()]
        own = [*kernel.inputs, *kernel.weights]
        if len(names) != len(own):
            raise CompileError(f"it has {len(names)} inputs, not {len(own)}")
        fixed = {name: ort_value(weights[name]) for name in kernel.weights}

        def run(values: Values) -> dict[str, Any]:
            given = {**{n: ort_value(values[n]) for n in kernel.inputs}, **fixed}
            feeds = {name: given[ours] for name, ours in zip(names, own, strict=True)}
            made = session.run_with_ort_values(None, feeds)
            return dict(zip(kernel.outputs, made, strict=True))

        return run


def _open(model: bytes | Path) -> onnxruntime.InferenceSession:
    try:
        return open_session(model, session_options())
    except Exception as error:  # onnxruntime raises many classes without a common base
        raise CompileError(f"onnxruntime: {message_of(error)}") from error
