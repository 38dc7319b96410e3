"""Reduce a model that shows a failure."""

from onnxfold.tools.reduction.reduce_model import Reduction, reduce

__all__ = ["Reduction", "reduce"]
