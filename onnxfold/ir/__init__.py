"""Models: read and write files, edit graphs, and represent symbolic sizes."""
