"""Reducing a model that shows a failure."""

from onnxfold.reduction.reduce_model import Reduction, reduce

__all__ = ["Reduction", "reduce"]
