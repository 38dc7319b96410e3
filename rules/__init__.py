"""The rule sets: declarative rewrites as plain data, filed by subject."""
