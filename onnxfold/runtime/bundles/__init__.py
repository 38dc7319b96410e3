"""Bundles: split models in folders or in memory, their manifests, and their text form."""
