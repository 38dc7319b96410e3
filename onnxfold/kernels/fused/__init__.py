"""Element-wise and movement ops over large constants, done together and piece by piece."""
