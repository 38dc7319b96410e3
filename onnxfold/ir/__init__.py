"""Models: reading and writing of files, queries and edits of graphs, and symbolic sizes."""
