"""onnx-mlir: MLIR ahead of time to a shared library, by its container image or its binary."""
