"""Models: reading and writing files, changing graphs, symbolic sizes."""
