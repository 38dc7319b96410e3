"""What schemas do not say: shapes and values that fit, one family of ops a file."""
