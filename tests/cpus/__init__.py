"""Run tests on emulated CPUs."""
