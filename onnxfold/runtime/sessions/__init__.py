"""Sessions that run a split model like `onnxruntime.InferenceSession`, and their cache."""
