"""NumPy kernels, one file for each family of ops; importing the package registers them."""

from onnxfold.kernels import cast, data_movement, elementwise
from onnxfold.kernels.registry import Kind, NotExact, Unfoldable, all_kernels, find

__all__ = [
    "Kind",
    "NotExact",
    "Unfoldable",
    "all_kernels",
    "find",
    "cast",
    "elementwise",
    "data_movement",
]
