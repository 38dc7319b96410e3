"""Editing a graph: names, values that take another's place, nodes that go with all they read."""
