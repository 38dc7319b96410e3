"""Models: reading and writing files, editing graphs, and symbolic sizes."""
