"""Running a split model like `onnxruntime.InferenceSession`, with what it folded in a cache."""
