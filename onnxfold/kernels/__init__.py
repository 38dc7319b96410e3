"""What an op computes: NumPy kernels where IEEE 754 or integer arithmetic defines the bits, onnxruntime for the rest."""
