"""The computation of constants: buffers, the evaluator, its engines, and block execution."""
