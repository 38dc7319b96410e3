"""Self-contained pages about a run, a comparison or a split."""
