"""Bundles: the manifest of a split model, its files, and sessions on its parts."""
