"""Precompute everything in an ONNX model that does not depend on its inputs, bit for bit.

>>> import onnxfold
>>> report = onnxfold.optimize_file("in.onnx", "out.onnx")  # streams weights  # doctest: +SKIP
>>> model = onnxfold.optimize("in.onnx")  # an onnx_ir.Model  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from onnxfold.support.errors import (
    CheckFailedError,
    ExternalDataError,
    MissingFileError,
    ModelError,
    OnnxFoldError,
    UsageError,
)

if TYPE_CHECKING:
    from onnxfold.api.drop_in import simplify, slim
    from onnxfold.api.optimize import optimize, optimize_file, plan
    from onnxfold.api.targets import Target
    from onnxfold.ir.storage.load import load
    from onnxfold.ir.storage.save import save
    from onnxfold.runtime.inference_session import InferenceSession
    from onnxfold.runtime.sessions.cache import FoldCache
    from onnxfold.runtime.sessions.session import Session
    from onnxfold.runtime.split_model import split
    from onnxfold.tools.batches import batch
    from onnxfold.tools.comparison import compare
    from onnxfold.tools.reduction import reduce
    from onnxfold.tools.report.explanations import explain, why
    from onnxfold.tools.shape_inference import infer_shapes, infer_shapes_file
    from onnxfold.tools.tuning import tune

__version__ = "0.3.0"

__all__ = [
    "CheckFailedError",
    "ExternalDataError",
    "FoldCache",
    "InferenceSession",
    "MissingFileError",
    "ModelError",
    "OnnxFoldError",
    "Session",
    "Target",
    "UsageError",
    "batch",
    "compare",
    "explain",
    "infer_shapes",
    "infer_shapes_file",
    "load",
    "optimize",
    "optimize_file",
    "plan",
    "reduce",
    "save",
    "simplify",
    "slim",
    "split",
    "tune",
    "why",
]

# The public names except errors are imported at their first use, because importing onnx and NumPy
# is slow.
_MODULES = {
    "FoldCache": "onnxfold.runtime.sessions.cache",
    "InferenceSession": "onnxfold.runtime.inference_session",
    "Session": "onnxfold.runtime.sessions.session",
    "Target": "onnxfold.api.targets",
    "batch": "onnxfold.tools.batches",
    "compare": "onnxfold.tools.comparison",
    "explain": "onnxfold.tools.report.explanations",
    "infer_shapes": "onnxfold.tools.shape_inference",
    "infer_shapes_file": "onnxfold.tools.shape_inference",
    "load": "onnxfold.ir.storage",
    "optimize": "onnxfold.api.optimize",
    "optimize_file": "onnxfold.api.optimize",
    "plan": "onnxfold.api.optimize",
    "reduce": "onnxfold.tools.reduction",
    "save": "onnxfold.ir.storage",
    "simplify": "onnxfold.api.drop_in",
    "slim": "onnxfold.api.drop_in",
    "split": "onnxfold.runtime.split_model",
    "tune": "onnxfold.tools.tuning",
    "why": "onnxfold.tools.report.explanations",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # with a module `__getattr__`, type checkers would accept any misspelled name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(importlib.import_module(_MODULES[name]), name)
        raise AttributeError(f"module 'onnxfold' has no attribute {name!r}")
