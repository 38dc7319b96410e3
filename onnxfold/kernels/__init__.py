"""NumPy kernels, one family of ops a file; importing the package fills the table."""

from onnxfold.kernels import (
    arithmetic,
    cast,
    comparison,
    concat,
    gather,
    generate,
    layout,
    logical,
    pad,
    reduction,
)
from onnxfold.kernels.registry import (
    Array,
    Kind,
    NotExact,
    NumpyKernel,
    Unfoldable,
    all_kernels,
    find,
    kernel,
)

__all__ = [
    "Array",
    "NumpyKernel",
    "Kind",
    "NotExact",
    "Unfoldable",
    "all_kernels",
    "find",
    "kernel",
    "arithmetic",
    "cast",
    "comparison",
    "concat",
    "gather",
    "generate",
    "layout",
    "logical",
    "pad",
    "reduction",
]
