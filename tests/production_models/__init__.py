"""Models that packages of PyPI ship."""
