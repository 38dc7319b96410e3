"""Parts of the passes on shapes: edits, shape vectors, shared shapes, and fixed dimensions."""
