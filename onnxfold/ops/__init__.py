"""Definitions of ops: shapes, NumPy kernels, failures, costs and other properties.

The decorator `op` registers a definition. Importing the package registers definitions of ops of the
domains ai.onnx, ai.onnx.ml and com.microsoft.
"""

from onnxfold.ops import (
    classical,
    contrib,
    control_flow,
    elementwise,
    movement,
    normalization,
    products,
    quantization,
    recurrent,
    reductions,
    sequences,
    signals,
    windows,
)
from onnxfold.ops.application import Application, Undecided
from onnxfold.ops.definition import Op, Work, all_definitions, definition_of, find, op, ops_with
from onnxfold.ops.loading import load_ops
from onnxfold.ops.numpy_kernels import Kind, NotExact, Unfoldable
from onnxfold.ops.traits import Trait

__all__ = [
    "Application",
    "Kind",
    "NotExact",
    "Op",
    "Trait",
    "Undecided",
    "Unfoldable",
    "Work",
    "all_definitions",
    "classical",
    "contrib",
    "control_flow",
    "definition_of",
    "elementwise",
    "find",
    "load_ops",
    "movement",
    "normalization",
    "op",
    "ops_with",
    "products",
    "quantization",
    "recurrent",
    "reductions",
    "sequences",
    "signals",
    "windows",
]
