"""Who runs runtime_fold: onnxruntime always, and kernels that compilers made of parts of it."""
