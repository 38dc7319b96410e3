"""What a backend is: it compiles a model of a few nodes to a kernel, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import onnx_ir as ir

Values = Mapping[str, Any]
"""NumPy arrays or ``onnxruntime.OrtValue`` by name."""

Kernel = Callable[[Values], dict[str, Any]]
"""Inputs by name to outputs by name (arrays, or onnxruntime values)."""

FUNCTION = "fold"
"""Name of the graph of a model that is given to a compiler."""


@dataclass(frozen=True)
class Built:
    """What a compiler made of a model.

    Attributes:
        files: The kernel's file, and behind it those that it reads: all in one folder.
        function: What is called in it.
        results: Its outputs on the arrays that it was tried on.
    """

    files: list[Path]
    function: str
    results: list[Any]


@dataclass(frozen=True)
class Compiled:
    """A kernel as it is stored.

    Attributes:
        file: The kernel's file; what it reads lies beside it.
        function: What is called in it.
        inputs: Names of its inputs, in order.
        weights: Names of the weights that it is given behind them.
        outputs: Names of its outputs, in order.
        dtypes: Of the outputs, as NumPy calls them.
        key: What it was made of and for.
    """

    file: Path
    function: str
    inputs: list[str]
    weights: list[str]
    outputs: list[str]
    dtypes: list[str]
    key: dict[str, str]


class CompileError(Exception):
    """A backend cannot compile or load a model; the message says why in one line."""


class Backend(Protocol):
    """Compiles models ahead of time and loads the result."""

    name: str

    def missing(self) -> str | None:
        """Why the backend cannot compile on this machine, or None if it can."""

    def maker(self) -> str:
        """The very compiler that is used, where none is missing: its version, its image."""

    def supported(self, model: ir.Model) -> list[str]:
        """Why the backend is not asked to compile the model; nothing if it is."""

    def key_of(self, graph: str) -> dict[str, str]:
        """What a kernel of a model (by its hash) is made for: machine, flags; needs no compiler."""

    def compile(
        self, content: bytes, arrays: Sequence[Any] | None, target: Path, *, seconds: float
    ) -> Built:
        """Compile a serialized model, and try it on arrays in the order of its inputs.

        Args:
            content: The model; its weights are in it or are inputs of it.
            arrays: Inputs to try it on; None to only compile it.
            target: Folder and name of the kernel's file, without a suffix. The name is lower-case
                letters and digits, and no other kernel's.
            seconds: Time limit.

        Raises:
            CompileError: It is refused, takes too long, or the compiler or the kernel dies.
        """

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> list[Path]:
        """Write what becomes of a model on the way to a kernel, a file a stage.

        Raises:
            CompileError: As `compile`.
        """

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Why a stored kernel with this key cannot be run here, or None if it can."""

    def load(self, compiled: Compiled, weights: Values) -> Kernel:
        """A kernel that can be called from any thread; raises `CompileError`."""
