"""The expressions of patterns and replacements, and the pairs that ``>>`` makes of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Union

import onnx_ir as ir

from onnxfold.rewrite.conditions import OmittedInput, Term, text_of
from onnxfold.rewrite.matched import Matched, Value
from onnxfold.support.errors import suggestion
from onnxfold.support.forks import cached_property

Operand = Union["Expression", float, None]
"""Objects that a rule may write as an operand."""


class Expression:
    """A value in a pattern or in a replacement."""

    operands: Sequence[Expression] = ()
    """The expressions that this one directly contains."""
    terms: Sequence[object] = ()
    """The attributes, contents and dtypes of constants, and numbers and indices of outputs.

    A pattern binds the symbols in these terms, and a replacement computes the values of the terms.
    The term of a `Rest` is its variadic variable.
    """
    op: Op | None = None
    """The op whose output this expression is, the op itself for an op, or None for others."""
    index: Any = 0
    """The index of the output of the op: a number, or in a replacement a term."""

    def __rshift__(self, replacement: Operand) -> Pair:
        return Pair([self], as_expressions([replacement]), sys._getframe(1).f_locals)


def walk(expressions: Iterable[Expression]) -> list[Expression]:
    """Return the expressions and all expressions in them, each object once."""
    visited: dict[int, Expression] = {}
    stack = [*expressions][::-1]
    while stack:
        expression = stack.pop()
        if id(expression) not in visited:
            visited[id(expression)] = expression
            stack.extend(reversed(expression.operands))
    return list(visited.values())


@dataclass(eq=False)
class Pair:
    """``pattern >> replacement``, with one or several outputs on both sides.

    ``names`` has the local variables of the rule's function.
    """

    patterns: Sequence[Expression]
    replacements: Sequence[Expression]
    names: Mapping[str, Any]


class outputs:
    """Several results of a pattern or replacement, in the same order on both sides.

    In a pattern, the results after the first one must be results of ops in the first one.
    """

    def __init__(self, *expressions: Operand) -> None:
        self.expressions = as_expressions(expressions)

    def __rshift__(self, replacement: outputs) -> Pair:
        if not isinstance(replacement, outputs):
            raise TypeError("outputs(...) on the left requires outputs(...) on the right of >>")
        return Pair(self.expressions, replacement.expressions, sys._getframe(1).f_locals)


def as_expressions(operands: Sequence[Any]) -> tuple[Expression, ...]:
    """Return operands as expressions. A number becomes a literal, and None an omitted input.

    Raises:
        TypeError: An object cannot be an operand.
    """
    expressions: list[Expression] = []
    for operand in operands:
        if isinstance(operand, Values):
            raise TypeError(f"write *{operand!r} instead of {operand!r}: it matches several inputs")
        if operand is None or isinstance(operand, Expression):
            expressions.append(omitted if operand is None else operand)
        elif isinstance(operand, (int, float)):
            expressions.append(Literal(operand))
        else:
            problem = "cannot be an operand"
            if isinstance(operand, Term):
                problem = "is not a value: write constant(...)"
            raise TypeError(f"{operand!r} {problem}")
    return tuple(expressions)


def is_on_constants(expression: Expression) -> bool:
    """Return whether an expression is omitted or a compile-time constant in every model."""
    if expression is omitted or isinstance(expression, (Constant, Literal, filled, constant)):
        return True
    return bool(expression.operands) and all(map(is_on_constants, expression.operands))


def is_optional(expression: Expression) -> bool:
    """Return whether an input may be omitted."""
    return isinstance(expression, any_of) and omitted in expression.operands


class Symbol(Value):
    """A symbol for a matched value, with the properties that conditions can use."""

    name = ""

    def evaluate(self, match: Any) -> Any:
        """Return the matched value: the first result of an op, or a tuple of variadic inputs.

        Omitted inputs in the tuple are None.

        Raises:
            OmittedInput: The input is omitted.
        """
        content = match.bound(self)
        if content is None:
            raise OmittedInput("{} is omitted", self)
        if type(content) is tuple:
            return tuple(v and Matched(v, match.facts) for v in content)
        # onnx-ir's classes are protocols, for which `isinstance` is slow
        value = content.outputs[0] if type(content) is ir.Node else content
        return Matched(value, match.facts)

    def __getattr__(self, name: str) -> NoReturn:
        names = [each for each in dir(Value) if not each.startswith("_") and each != "evaluate"]
        raise AttributeError(f"a value has no {name!r}{suggestion(name, names, len(names))}")

    def _refuse_use(self, *arguments: object) -> NoReturn:
        hint = "compare its .number or .rank, write .is_omitted, or use an Attribute"
        raise TypeError(f"{self!r} is a value: {hint}")

    __bool__ = _refuse_use
    __lt__ = _refuse_use
    __le__ = _refuse_use
    __gt__ = _refuse_use
    __ge__ = _refuse_use
    __neg__ = _refuse_use
    __add__ = _refuse_use
    __radd__ = _refuse_use
    __sub__ = _refuse_use
    __rsub__ = _refuse_use
    __mul__ = _refuse_use
    __rmul__ = _refuse_use
    __truediv__ = _refuse_use


class Variable(Symbol, Expression):
    """Any value, but no omitted input.

    All occurrences of the variable match the same value, or small constants with equal bits.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Constant(Variable):
    """Any compile-time constant."""


class Values(Variable):
    """Zero or more inputs: ``op.Concat(*xs, axis=a)``."""

    @property
    def length(self) -> Term:
        """The number of inputs."""
        return _Length(len, self)

    def __iter__(self) -> Iterator[Rest]:
        return iter((Rest(self),))


class _Length(Term):
    """A term for the number of inputs. Unlike `Symbol.evaluate`, it creates no `Matched` values."""

    def evaluate(self, match: Any) -> int:
        return len(match.bound(self.args[0]))


class Rest(Expression):
    """A variadic variable among the operands of an op."""

    def __init__(self, variable: Values) -> None:
        self.variable = variable
        self.terms = (variable,)
        self.operands = self.terms

    def __repr__(self) -> str:
        return f"*{self.variable!r}"


result = Variable("result")
"""The value that the rule replaces. If a rule replaces several values, the first one."""
omitted = Variable("None")
"""An omitted input."""
anything = Variable("anything")
"""In a pattern: an attribute with any value or none, or any operand that is not omitted."""


class Literal(Expression):
    """A number as an operand.

    A pattern matches a constant of one element that is exactly the number. In a replacement, the
    number becomes a constant with the dtype that the op requires.
    """

    def __init__(self, number: float) -> None:
        self.literal = number

    def __repr__(self) -> str:
        return repr(self.literal)


class near(Literal):
    """In a pattern: a floating-point constant of one element that is approximately the number.

    The pattern matches the number, rounded to the dtype of the constant or to 6 to 16 digits. The
    relative error may be that of one rounding to float32.
    """

    def __repr__(self) -> str:
        return f"near({self.literal:.6g})"


class filled(Variable):
    """In a pattern: a constant of any shape whose elements are all equal to the number.

    -0.0 does not match 0.0. For a constant of integers, 1.0 matches 1. No empty constant matches.
    """

    def __init__(self, number: float) -> None:
        self.literal = number

    def __repr__(self) -> str:
        text = f"filled({self.literal!r})"
        return f"{self.name} := {text}" if self.name else text


class constant(Expression):
    """In a replacement: a small constant.

    Args:
        content: The elements: a number, a list, an array, or a term, as in ``constant([0, -1])``
            and ``constant(x.shape)``.
        dtype: An ``ir.DataType`` or a term for one. By default int64 for integers and no elements,
            float32 for floats, bool for booleans, and the dtype of an array.
        like: A value whose dtype replaces ``dtype``; ``result`` for the replaced value.
    """

    def __init__(self, content: Any, dtype: Any = None, *, like: Expression | None = None) -> None:
        self.content = content
        self.dtype = dtype
        self.like = like
        self.terms = (content, dtype)
        self.operands = () if like is None or like is result else (like,)

    def __repr__(self) -> str:
        return f"constant({text_of(self.content)})"


class any_of(Symbol, Expression):
    """Alternatives, and the value of the alternative that matched.

    A pattern matches the first alternative that leads to a match. A variable that occurs only in
    other alternatives is omitted, like an omitted input. In a replacement, the value is that of the
    first alternative that is not omitted. For example, ``any_of(op.Add(x, b), x)`` in a pattern
    matches with and without an addition. ``any_of(op.Sub(y, b), y)`` in the replacement is then the
    subtraction or y.
    """

    def __init__(self, *choices: Any) -> None:
        self.operands = as_expressions(choices)

    def __repr__(self) -> str:
        text = f"any_of({', '.join(map(repr, self.operands))})"
        return f"{self.name} := {text}" if self.name else text


class OpVariable:
    """A variable for one op of several possible types.

    With ``f = op.any_of("Relu", "Sigmoid")``, ``f(x)`` in a pattern matches either op with any
    attributes. ``f(y)`` in the replacement is the op type that matched, with the same attributes.
    The replacement can set other attributes, and remove an attribute by None.

    Args:
        domain: The domain of the ops.
        op_types: The types of the ops.
        either_way: Whether the two operands match in either order. The replacement has the operands
            in the order that matched.
        is_standard: Whether onnx must have a schema of the op, if onnx has schemas of the domain.
    """

    def __init__(
        self,
        domain: str,
        op_types: Sequence[str],
        *,
        either_way: bool = False,
        is_standard: bool = True,
    ) -> None:
        self.domain = domain
        self.op_types = tuple(op_types)
        self._is_standard = is_standard
        self.swap = object() if either_way else None
        """The symbol for whether the operands matched in reverse order; None if only in order."""

    def __call__(self, *operands: Operand, **attributes: Any) -> Op:
        """Return the op with these operands."""
        is_standard = self._is_standard
        return Op(
            self.domain, self.op_types, self, *operands, _is_standard=is_standard, **attributes
        )

    def __repr__(self) -> str:
        return "|".join(self.op_types)


class Op(Symbol, Expression):
    """An op. As an operand, ``op.F(x)`` is its output 0, and ``op.F(x)[k]`` is its output k."""

    def __init__(
        self,
        domain: str,
        op_types: tuple[str, ...],
        variable: OpVariable | None,
        /,
        *operands: Any,
        _outputs: Any = None,
        _is_standard: bool = True,
        **attributes: Any,
    ) -> None:
        self.domain = domain
        self.op_types = op_types
        for operand in operands:  # most are expressions
            if not isinstance(operand, Expression) or isinstance(operand, Values):
                operands = as_expressions(operands)
                break
        self.operands = operands
        self.output_count = _outputs
        """The number of outputs of a new node, as a number or term.

        None means that the node has the outputs that the replacement uses.
        """
        for name, value in attributes.items():
            if type(value) is list:
                attributes[name] = tuple(value)
        self.attributes = attributes
        self.terms = (_outputs, *attributes.values())
        self.variable = variable
        self.op = self
        self.is_standard = _is_standard
        """Whether onnx must have a schema of the op, if onnx has schemas of the domain."""

    def __getitem__(self, index: Any) -> OutputOf:
        return OutputOf(self, index)

    @cached_property
    def variadic(self) -> tuple[bool, ...]:
        """For each operand, whether it is a variadic variable."""
        return tuple(isinstance(operand, Rest) for operand in self.operands)

    @property
    def outputs(self) -> AllOutputs:
        """All outputs: ``op.LSTM(x, w, r).outputs >> op.LSTM(x, w, r).outputs``."""
        return AllOutputs(self, 0)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("select outputs by index: split[0], split[1]")

    def __repr__(self) -> str:
        arguments = list(map(repr, self.operands))
        arguments += [f"{name}={text_of(value)}" for name, value in self.attributes.items()]
        text = f"{'|'.join(self.op_types)}({', '.join(arguments)})"
        return f"{self.name} := {text}" if self.name else text


class OutputOf(Expression):
    """One output of an op with several outputs."""

    op: Op

    def __init__(self, op: Op, index: Any) -> None:
        self.op = op
        self.index = index
        self.terms = (index,)
        self.operands = (op,)

    def __repr__(self) -> str:
        return f"{self.op!r}[{text_of(self.index)}]"


class AllOutputs(OutputOf):
    """All outputs of an op. They are replaced by all outputs of another op.

    The matcher compares this pattern with the first output of a node.
    """

    def __repr__(self) -> str:
        return f"{self.op!r}.outputs"


def op_of(root: Expression) -> Op:
    """Return the op of the root of a pattern, which is an op or the output of an op.

    Raises:
        TypeError: The root is another expression.
    """
    if root.op is None:
        raise TypeError(f"the pattern must be an op, not {root!r}")
    return root.op
