"""Compute constants: the pool of buffers, the evaluator and its engines, block execution."""
