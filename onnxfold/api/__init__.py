"""The functions that optimize models, their options and targets, and the check of arguments."""
