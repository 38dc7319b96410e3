"""Comparing what two models compute."""

from onnxfold.comparison.pair import compare
from onnxfold.comparison.result import Comparison, OutputResult

__all__ = ["Comparison", "OutputResult", "compare"]
