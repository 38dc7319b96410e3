"""Servers that use onnxfold in forked and spawned processes and in threads.

    python -m tests.servers SECONDS [SEED]

Every answer is compared with onnxruntime's results. Hanging workers and remaining processes,
descriptors and temporary files are also reported. SECONDS is CPU time.
"""
