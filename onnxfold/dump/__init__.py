"""Graphs as ONNX text, as drawings, and as diffs of the passes."""
