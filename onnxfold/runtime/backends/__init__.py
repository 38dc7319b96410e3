"""Backends for runtime_fold: compilers of kernels, and the choice between them and onnxruntime."""
