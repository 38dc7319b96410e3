"""Symbolic sizes: integers as expressions of the sizes of inputs, and facts about values."""

from onnxfold.symbolic.expression import Algebra, Expr, NotKnown, Number
from onnxfold.symbolic.fact import UNKNOWN, Fact

__all__ = ["UNKNOWN", "Algebra", "Expr", "Fact", "NotKnown", "Number"]
