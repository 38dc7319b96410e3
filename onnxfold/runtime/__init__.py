"""Split models by their runtime constants, and run optimized and split models in sessions."""
