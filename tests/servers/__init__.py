"""Servers that use onnxfold in forked and spawned processes and in threads.

    python -m tests.servers SECONDS [SEED]

Every answer is compared with onnxruntime's results. Hanging workers and remaining processes,
descriptors and temporary files are also reported. The servers run repeatedly until they have used
SECONDS of CPU time. SEED is 0 by default.
"""
