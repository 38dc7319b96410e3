"""Models with branches that compute the same of the same weights."""
