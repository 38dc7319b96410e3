"""onnx-mlir: MLIR ahead of time to a shared library, by its container image or its binary."""

from onnxfold.runtime.backends.onnx_mlir.backend import OnnxMlir

__all__ = ["OnnxMlir"]
