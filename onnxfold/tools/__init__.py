"""Tools around optimization: compare, bench, tune, reduce, batch, report."""
