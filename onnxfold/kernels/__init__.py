"""Compute operations on buffers: by NumPy kernels of op definitions, or by onnxruntime."""
