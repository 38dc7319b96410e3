"""onnxfold: an optimizer for ONNX models."""
