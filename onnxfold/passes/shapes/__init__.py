"""The modules that passes on shapes use: edits, shape vectors, sharing, and fixed dimensions."""
