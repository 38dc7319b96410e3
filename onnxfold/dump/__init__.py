"""Graphs on paper: as ONNX text, as drawings, and what a pass has changed of them."""
