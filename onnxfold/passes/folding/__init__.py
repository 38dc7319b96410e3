"""How constant propagation walks, and how its results become tensors of the model."""
