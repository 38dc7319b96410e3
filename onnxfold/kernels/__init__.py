"""NumPy kernels, one family of ops a file; importing the package fills the table."""

from onnxfold.kernels import cast, elementwise, layout
from onnxfold.kernels.registry import Kind, NotExact, Unfoldable, all_kernels, find

__all__ = [
    "Kind",
    "NotExact",
    "Unfoldable",
    "all_kernels",
    "find",
    "cast",
    "elementwise",
    "layout",
]
