"""Changes of the pass symbolic-shapes: shape operands, shared shapes, and fixed dimensions."""
