"""Backends for runtime_fold: onnxruntime, and compilers of kernels for parts of it."""
