"""Expressions for integers that are known only at run time, and facts about values."""

from onnxfold.ir.symbolic.expression import Algebra, Expr, NotKnown, Number
from onnxfold.ir.symbolic.fact import UNKNOWN, Fact

__all__ = ["UNKNOWN", "Algebra", "Expr", "Fact", "NotKnown", "Number"]
