"""Symbolic shapes and values: infer sizes as expressions of the inputs' sizes."""

from onnxfold.analysis.symbolic import contraction, elementwise_shapes, movement
from onnxfold.analysis.symbolic.analysis import SymbolicAnalysis
from onnxfold.analysis.symbolic.expression import Algebra, Expr, NotKnown, Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact

ASSUMPTIONS = (
    "Inputs are such that the model runs: what is broadcast fits, nothing is divided by 0, and no "
    "executed branch yields a rank that a later Conv or LSTM rejects.",
    "Dims of the inputs that have the same name have the same size.",
    "Sizes and what a model computes of them fit into the integers it computes them in.",
    "No Reshape has two axes that are empty independently of each other, both in the same run.",
    "Images that are padded before a convolution or a pool have pixels.",
    "The end 2147483647 of a Slice means the end of the axis, as ONNX defines.",
)
"""Assumptions about valid inputs."""

__all__ = [
    "ASSUMPTIONS",
    "UNKNOWN",
    "Algebra",
    "Expr",
    "Fact",
    "NotKnown",
    "Number",
    "SymbolicAnalysis",
    "contraction",
    "elementwise_shapes",
    "movement",
]
