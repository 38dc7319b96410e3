"""Changes of the pass symbolic-shapes: edits, shared shapes, and fixed dimensions."""
