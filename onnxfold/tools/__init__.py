"""Tools around the optimizer: they measure, compare, reduce, predict, describe and report."""
