"""Hostile files: what onnxfold does with any bytes at all. ``python -m tests.hostile --help``."""
