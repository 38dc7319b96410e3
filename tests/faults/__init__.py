"""What happens around the program while it runs. By hand: ``python -m tests.faults``."""
