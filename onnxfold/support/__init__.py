"""Access to the operating system, processes, files and onnxruntime, and tables and errors."""
