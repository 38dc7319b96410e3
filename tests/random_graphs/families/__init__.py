"""Shapes and values that schemas do not specify. Each file contains one family of ops."""
