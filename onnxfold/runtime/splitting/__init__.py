"""Cutting a model in two: what depends on runtime constants only, and the rest."""
