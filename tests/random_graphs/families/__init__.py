"""Functions that add nodes with shapes and values that the schemas of ops do not specify."""
