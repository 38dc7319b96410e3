"""The computation of constants: operations, the evaluator, the engines and the pool of buffers."""
