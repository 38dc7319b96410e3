"""The expressions that patterns and replacements are made of."""

from onnxfold.rewrite.patterns.attribute_variables import (
    AttributeVariable,
    OptionalAttribute,
    absent,
    anything,
)
from onnxfold.rewrite.patterns.expression import Expression, Operand, Several
from onnxfold.rewrite.patterns.literals import (
    Filled,
    Literal,
    MadeConstant,
    Near,
)
from onnxfold.rewrite.patterns.operands import (
    as_expression,
)
from onnxfold.rewrite.patterns.ops import (
    AllOutputs,
    AnyOf,
    Op,
    OpVariable,
    OutputOf,
)
from onnxfold.rewrite.patterns.pair import (
    Outputs,
    Pair,
    outputs,
)
from onnxfold.rewrite.patterns.variables import (
    ConstantVariable,
    Omitted,
    Optional,
    Rest,
    Result,
    ValueVariable,
    Variable,
    VariadicVariable,
    result,
)
from onnxfold.rewrite.patterns.words import (
    any_of,
    attributes,
    constant,
    constants,
    filled,
    near,
    optional,
    values,
)

__all__ = [
    "AllOutputs",
    "AnyOf",
    "AttributeVariable",
    "ConstantVariable",
    "Expression",
    "Filled",
    "Literal",
    "MadeConstant",
    "Near",
    "Omitted",
    "Op",
    "OpVariable",
    "Operand",
    "Optional",
    "OptionalAttribute",
    "OutputOf",
    "Outputs",
    "Pair",
    "Rest",
    "Result",
    "Several",
    "ValueVariable",
    "Variable",
    "VariadicVariable",
    "absent",
    "any_of",
    "anything",
    "as_expression",
    "attributes",
    "constant",
    "constants",
    "filled",
    "near",
    "optional",
    "outputs",
    "result",
    "values",
]
