"""Servers that use onnxfold in forked and spawned processes and in threads.

    python -m tests.servers SECONDS [SEED]

Every answer is compared with onnxruntime's; a hanging worker, and processes, descriptors and
temporary files that are left, are problems, too. SECONDS is CPU time.
"""
