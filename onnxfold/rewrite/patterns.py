"""The expressions that patterns and replacements are made of: what they say, not what is done."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Union

Operand = Union["Expression", float, None]
"""What may be written in the place of an expression."""


class Expression:
    """A value in a pattern or in a replacement."""

    weight = 1
    """Order in which operands are matched: what rules out the most comes first."""
    operands: Sequence[Expression] = ()
    """The expressions that it is made of."""

    def __rshift__(self, replacement: Operand) -> Pair:
        return Pair([self], [replacement])

    @property
    def is_constant(self) -> bool:
        """Whether it stands for a compile-time constant in every model."""
        if isinstance(self, (ConstantVariable, Literal, Filled, MadeConstant, Omitted)):
            return True
        return bool(self.operands) and all(operand.is_constant for operand in self.operands)

    def walk(self) -> Iterator[Expression]:
        """Yield the expression and all below it, each object once."""
        seen: set[int] = set()
        stack: list[Expression] = [self]
        while stack:
            expression = stack.pop()
            if id(expression) not in seen:
                seen.add(id(expression))
                yield expression
                stack.extend(reversed(expression.operands))


class Pair:
    """``pattern >> replacement``, before it becomes a rule."""

    def __init__(self, patterns: Sequence[Expression], replacements: Sequence[Operand]) -> None:
        self.patterns = patterns
        self.replacements = [as_expression(replacement) for replacement in replacements]


class Outputs:
    """Several results: ``outputs(p, q) >> outputs(r, s)``."""

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self.expressions = expressions

    def __rshift__(self, replacement: Outputs) -> Pair:
        if not isinstance(replacement, Outputs):
            raise TypeError("several outputs are replaced by several: outputs(...) >> outputs(...)")
        return Pair(self.expressions, replacement.expressions)


def as_expression(operand: Any) -> Expression:
    """Return an expression of an operand: a number becomes a literal, None an omitted input."""
    if isinstance(operand, VariadicVariable):
        raise TypeError(f"write *{operand!r}: a variadic variable stands for several inputs")
    if isinstance(operand, Expression):
        return operand
    if operand is None:
        return Omitted()
    if isinstance(operand, (bool, int, float)):
        return Literal(operand)
    if callable(operand) or isinstance(operand, AttributeVariable):
        raise TypeError(f"{operand!r} is not a value: write constant(..., dtype)")
    raise TypeError(f"{operand!r} cannot stand for a value")


# -------------------------------------------------------------------- variables


class Variable(Expression):
    """Stands for a value; in several places for the same one."""

    weight = 5

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class ValueVariable(Variable):
    """Any value."""


class ConstantVariable(ValueVariable):
    """Any compile-time constant."""

    weight = 1


class VariadicVariable(Variable):
    """Any number of inputs, none included: ``op.Concat(*xs, axis=a)``."""

    def __iter__(self) -> Iterator[Rest]:
        yield Rest(self)


class Rest(Expression):
    """A variadic variable in its place among the inputs."""

    weight = 6

    def __init__(self, variable: VariadicVariable) -> None:
        self.variable = variable
        self.operands = (variable,)

    def __repr__(self) -> str:
        return f"*{self.variable!r}"


class Optional(Expression):
    """An input that may be omitted."""

    weight = 6

    def __init__(self, inner: Expression) -> None:
        self.inner = inner
        self.operands = (inner,)

    def __repr__(self) -> str:
        return f"optional({self.inner!r})"


class Omitted(Expression):
    """No input here: ``None`` in a pattern or replacement."""

    weight = 0

    def __repr__(self) -> str:
        return "None"


class RootResult(Expression):
    """The first value that is replaced: ``constant(0, like=result)``."""

    def __repr__(self) -> str:
        return "result"


result = RootResult()


class AttributeVariable:
    """Stands for the value of an attribute: int, float, str, or a tuple of them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Anything:
    """In a pattern: whatever the attribute is, there or not."""

    def __repr__(self) -> str:
        return "anything"


anything = Anything()

# -------------------------------------------------------------------- constants


class Literal(Expression):
    """A number. A pattern matches a constant of one element with exactly that value."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __repr__(self) -> str:
        return repr(self.number)


class Near(Literal):
    """A constant of one element that is the number, as precisely as a float16 has it."""

    def __repr__(self) -> str:
        return f"near({self.number:.6g})"


class Filled(Variable):
    """A constant of any shape all of whose elements are the number."""

    weight = 1

    def __init__(self, number: float) -> None:
        super().__init__("")
        self.number = number

    def named(self, name: str) -> Filled:
        """Give the constant the name under which functions ask for it."""
        self.name = name
        return self

    def __repr__(self) -> str:
        return self.name or f"filled({self.number!r})"


class MadeConstant(Expression):
    """A small constant that a replacement makes of numbers, or of what a function returns."""

    def __init__(self, content: object, dtype: object, like: Expression | None) -> None:
        self.content = content
        self.dtype = dtype
        self.like = like
        self.operands = () if like is None or like is result else (like,)

    def __repr__(self) -> str:
        return f"constant({text_of(self.content)})"


# -------------------------------------------------------------------- ops


class AnyOf(Expression):
    """One of several patterns, the first that leads to a match."""

    weight = 4

    def __init__(self, choices: Sequence[Expression]) -> None:
        self.operands = choices

    def __repr__(self) -> str:
        return f"any_of({', '.join(map(repr, self.operands))})"


class Swap:
    """Stands for whether the operands of an op are the other way round."""


class OpVariable:
    """An op of several possible types; the replacement can make the same op again.

    ``f = op.any_of("Relu", "Sigmoid")``: ``f(x)`` in a pattern matches either with whatever
    attributes; ``f(y)`` in the replacement is the op that matched, with the same attributes except
    those that are given anew (None removes one).

    Args:
        domain: The domain of the ops.
        op_types: Their types.
        either_way: The two operands match in either order, and are made in the order that matched.
    """

    def __init__(self, domain: str, op_types: Sequence[str], *, either_way: bool = False) -> None:
        self.domain = domain
        self.op_types = tuple(op_types)
        self.swap = Swap() if either_way else None
        """What is bound to whether the operands are the other way round, if they may be."""

    def __call__(self, *operands: Operand, **attributes: Any) -> Op:
        """Return the op that matches, or that has matched."""
        return Op(self.domain, self.op_types, operands, attributes, self)

    def __repr__(self) -> str:
        return "|".join(self.op_types)


class Op(Expression):
    """An op: as an operand it stands for its first output, ``[k]`` for another one."""

    weight = 2

    def __init__(
        self,
        domain: str,
        op_types: Sequence[str],
        operands: Iterable[Operand],
        attributes: dict[str, Any],
        variable: OpVariable | None = None,
    ) -> None:
        self.domain = domain
        self.op_types = tuple(op_types)
        self.operands = tuple(as_expression(operand) for operand in operands)
        self.output_count = attributes.pop("_outputs", None)
        """How many outputs a new node has: a number or function; None for as many as are used."""
        self.attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes.items()
        }
        self.variable = variable
        self.name = ""

    def __getitem__(self, index: Any) -> OutputOf:
        return OutputOf(self, index)

    def named(self, name: str) -> Op:
        """Give the op the name under which functions ask for its first output."""
        self.name = name
        return self

    @property
    def outputs(self) -> AllOutputs:
        """All outputs: ``op.LSTM(x, w, r).outputs >> op.LSTM(x, w, r).outputs``."""
        return AllOutputs(self)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("name the outputs that you mean: split[0], split[1]")

    def __repr__(self) -> str:
        arguments = [repr(o) for o in self.operands]
        arguments += [f"{name}={text_of(value)}" for name, value in self.attributes.items()]
        text = f"{'|'.join(self.op_types)}({', '.join(arguments)})"
        return f"{self.name} := {text}" if self.name else text


class AllOutputs(Expression):
    """All outputs of an op: each is replaced by one of all outputs of another op."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.operands = (op,)

    def __repr__(self) -> str:
        return f"{self.op!r}.outputs"


class OutputOf(Expression):
    """One output of an op with several.

    Args:
        op: The op.
        index: Which one; in a replacement a function, too.
    """

    weight = 2

    def __init__(self, op: Op, index: Any) -> None:
        self.op = op
        self.index = index
        self.operands = (op,)

    def __repr__(self) -> str:
        return f"{self.op!r}[{text_of(self.index)}]"


def op_of(root: Expression) -> Op:
    """Return the op of a whole pattern: it, or that whose output or outputs it is."""
    op = root.op if isinstance(root, (OutputOf, AllOutputs)) else root
    if not isinstance(op, Op):
        raise TypeError(f"the pattern must be an op, not {root!r}")
    return op


def text_of(thing: object) -> str:
    """Return a condition or computed value as text: the body of a lambda, the call of a
    function.
    """
    code = getattr(thing, "__code__", None)
    if code is None:
        return repr(thing)
    names = code.co_varnames[: code.co_argcount]
    if code.co_name != "<lambda>":
        return f"{code.co_name}({', '.join(names)})"
    here = [
        node
        for node in ast.walk(_tree_of(code.co_filename))
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and tuple(argument.arg for argument in node.args.args) == names
    ]
    for node in here:
        made = compile(ast.Expression(node), code.co_filename, "eval").co_consts[0]
        if len(here) == 1 or (made.co_code, made.co_consts) == (code.co_code, code.co_consts):
            return ast.unparse(node.body)
    return f"lambda {', '.join(names)}: ..."


@functools.lru_cache(maxsize=8)
def _tree_of(file: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(file)))
