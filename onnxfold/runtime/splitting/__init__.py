"""Split a model into the part that depends on runtime constants only, and the remaining part."""
