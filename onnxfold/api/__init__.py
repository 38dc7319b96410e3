"""Public functions and their options."""
