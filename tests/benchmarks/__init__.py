"""Benchmarks, run by hand: ``python -m tests.benchmarks [NAME ...]`` prints one table each."""
