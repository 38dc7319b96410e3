"""Compare the outputs of two models."""

from onnxfold.tools.comparison.pair import compare
from onnxfold.tools.comparison.result import Comparison, OutputResult

__all__ = ["Comparison", "OutputResult", "compare"]
