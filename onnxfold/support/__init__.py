"""Access to the operating system, processes, files and onnxruntime; caches, tables and errors."""
