"""Measure how models run on onnxruntime: fused ops, session creation, run time and memory."""
