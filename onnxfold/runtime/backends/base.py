"""What a backend is: it compiles a model of a few nodes to a kernel, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import onnx_ir as ir

Values = Mapping[str, Any]
"""NumPy arrays or ``onnxruntime.OrtValue`` by name."""

Kernel = Callable[[Values], dict[str, Any]]
"""Inputs by name to outputs by name (arrays, or onnxruntime values)."""


@dataclass(frozen=True)
class Compiled:
    """A kernel as it is stored.

    Attributes:
        content: The bytes of the kernel's file.
        function: What is called in it.
        inputs: Names of its inputs, in order; weights that were left out of it come last.
        outputs: Names of its outputs, in order.
        dtypes: Of the outputs, as NumPy calls them.
        key: What it was made of and for.
    """

    content: bytes
    function: str
    inputs: list[str]
    weights: list[str]
    outputs: list[str]
    dtypes: list[str]
    key: dict[str, str]


class CompileError(Exception):
    """A backend cannot compile a model; the message says why in one line."""


class Backend(Protocol):
    """Compiles models ahead of time and loads the result."""

    name: str

    def missing(self) -> str | None:
        """Why the backend cannot compile on this machine, or None if it can."""

    def supported(self, model: ir.Model) -> list[str]:
        """Why the backend is not asked to compile the model; nothing if it is."""

    def compile(self, content: bytes, feeds: Values, *, seconds: float) -> tuple[bytes, list[Any]]:
        """Compile a serialized model: a kernel and its results on the feeds; `CompileError`."""

    def load(self, compiled: Compiled, weights: Values) -> Kernel:
        """A kernel that can be called from any thread; raises `CompileError`."""
