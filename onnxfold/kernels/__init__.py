"""NumPy kernels, one family of ops a file; importing the package fills the table."""

from onnxfold.kernels import (
    arithmetic,
    bitwise,
    cast,
    comparison,
    concat,
    gather,
    generate,
    layout,
    logical,
    pad,
    reduction,
    scatter,
)
from onnxfold.kernels.registry import (
    Array,
    Kernel,
    Kind,
    NotExact,
    Unfoldable,
    all_kernels,
    find,
    kernel,
)

__all__ = [
    "Array",
    "Kernel",
    "Kind",
    "NotExact",
    "Unfoldable",
    "all_kernels",
    "find",
    "kernel",
    "arithmetic",
    "bitwise",
    "cast",
    "comparison",
    "concat",
    "gather",
    "generate",
    "layout",
    "logical",
    "pad",
    "reduction",
    "scatter",
]
