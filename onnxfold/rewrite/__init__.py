"""The rule language: ``@rule`` functions return ``pattern >> replacement, where(...)``."""

import onnx_ir as ir

from onnxfold.ir.symbolic import NotKnown
from onnxfold.rewrite.conditions import Attribute, computed, inexact_if, maximum, where
from onnxfold.rewrite.matched import Matched, Value, axes_from_front
from onnxfold.rewrite.patterns import (
    Constant,
    Values,
    any_of,
    anything,
    constant,
    filled,
    near,
    outputs,
    result,
)
from onnxfold.rewrite.rule import Rule, RuleError, RuleSet, rule_set
from onnxfold.rewrite.vocabulary import op, optional, rule

FLOAT = ir.DataType.FLOAT
DOUBLE = ir.DataType.DOUBLE
FLOAT16 = ir.DataType.FLOAT16
BFLOAT16 = ir.DataType.BFLOAT16
INT32 = ir.DataType.INT32
INT64 = ir.DataType.INT64
BOOL = ir.DataType.BOOL

__all__ = [
    "BFLOAT16",
    "BOOL",
    "DOUBLE",
    "FLOAT",
    "FLOAT16",
    "INT32",
    "INT64",
    "Attribute",
    "Constant",
    "Matched",
    "NotKnown",
    "Rule",
    "RuleError",
    "RuleSet",
    "Value",
    "Values",
    "any_of",
    "anything",
    "axes_from_front",
    "computed",
    "constant",
    "filled",
    "inexact_if",
    "maximum",
    "near",
    "op",
    "optional",
    "outputs",
    "result",
    "rule",
    "rule_set",
    "where",
]
