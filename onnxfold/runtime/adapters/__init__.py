"""Adapters in files: reading them, and which runtime constants their tensors are."""
