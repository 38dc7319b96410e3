"""What rewrite rules ask about values: dtypes, shapes and small elements, one engine for all.

A size that is not known is an expression; equal expressions are equal sizes in every run.
"""

from __future__ import annotations

from onnxfold.analysis.symbolic import Expr as Symbol
from onnxfold.analysis.symbolic import Number as Dim
from onnxfold.analysis.symbolic import SymbolicAnalysis as Types
from onnxfold.analysis.symbolic.fact import Shape

__all__ = ["Dim", "Shape", "Symbol", "Types"]
