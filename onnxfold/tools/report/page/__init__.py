"""Self-contained HTML pages about a run, a comparison or a split."""
