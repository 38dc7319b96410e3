"""The one door to onnxruntime and to onnx's reference evaluator, for computing constants.

Who is outside imports from here: ``Engines`` says who computes an operation, the rest is how.
"""

from onnxfold.kernels.engines.certain import UNARY
from onnxfold.kernels.engines.engines import Engines
from onnxfold.kernels.engines.limits import TimeLimit, time_for

__all__ = [
    "UNARY",
    "Engines",
    "TimeLimit",
    "time_for",
]
