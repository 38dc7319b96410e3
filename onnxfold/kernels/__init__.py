"""NumPy kernels, one family of ops a file; importing the package fills the table."""

from onnxfold.kernels import cast, elementwise, generate, layout
from onnxfold.kernels.registry import Kind, NotExact, Unfoldable, all_kernels, find

__all__ = [
    "Kind",
    "NotExact",
    "Unfoldable",
    "all_kernels",
    "find",
    "cast",
    "elementwise",
    "generate",
    "layout",
]
