"""What functions take for a model."""

from __future__ import annotations

import os
from typing import Protocol, TypeVar, runtime_checkable

import onnx
import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.storage.load import from_proto, load


@runtime_checkable
class Program(Protocol):
    """A program of PyTorch's exporter: ``torch.onnx.ONNXProgram``, told by what it has."""

    model: ir.Model

    def release(self) -> None:
        """Let go of the session that runs the model as it was."""


PathLike = str | os.PathLike[str]
ModelLike = PathLike | ir.Model | onnx.ModelProto | Program
ModelT = TypeVar("ModelT", bound=ir.Model | onnx.ModelProto | Program)


def model_in(given: ModelLike) -> PathLike | ir.Model | onnx.ModelProto:
    """The model that is given, or that of the program that is.

    Raises:
        UsageError: It is none of these.
    """
    model = given.model if isinstance(given, Program) else given
    if not isinstance(model, (str, os.PathLike, ir.Model, onnx.ModelProto)):
        raise UsageError(
            "expected a path, an onnx_ir.Model, an onnx.ModelProto or PyTorch's ONNXProgram, "
            f"got {type(given).__name__}"
        )
    return model


def opened(given: ModelLike) -> ir.Model:
    """The model that is given, to be changed: what was given is left alone.

    Raises:
        UsageError: It is no model.
        ModelError: It is not valid.
    """
    model = model_in(given)
    if isinstance(model, ir.Model):
        return model.clone()
    return from_proto(model) if isinstance(model, onnx.ModelProto) else load(model)
