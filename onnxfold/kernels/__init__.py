"""NumPy kernels, one file for each family of ops; importing the package registers them."""

from onnxfold.kernels import data_movement, elementwise
from onnxfold.kernels.registry import KERNELS, Kind, NotExact, Unfoldable, find

__all__ = ["Kind", "NotExact", "Unfoldable", "KERNELS", "find", "elementwise", "data_movement"]
