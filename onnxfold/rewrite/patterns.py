"""The expressions that patterns and replacements are made of: what they say, not what is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

from onnxfold.rewrite.terms import Term

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Bindings, Match

Operand = Union["Expression", float, None]
"""What may be written in the place of an expression."""


class Expression:
    """A value in a pattern or in a replacement."""

    weight = 1
    """Order in which operands are matched: what rules out the most comes first."""

    def __rshift__(self, replacement: Operand) -> Pair:
        return Pair([self], [replacement])

    def found_in(self, bindings: Bindings) -> Any:
        """What it stands for in a match: a value (None if omitted), or values.

        Raises:
            KeyError: it is not bound.
        """
        return bindings[self]

    def children(self) -> Sequence[Expression]:
        """The operands."""
        return ()

    @property
    def is_constant(self) -> bool:
        """Whether it stands for a compile-time constant in every model."""
        return isinstance(self, _CONSTANTS) or (
            bool(self.children()) and all(child.is_constant for child in self.children())
        )

    def walk(self) -> Iterator[Expression]:
        """The expression and all below it, each object once."""
        seen: set[int] = set()
        stack: list[Expression] = [self]
        while stack:
            expression = stack.pop()
            if id(expression) not in seen:
                seen.add(id(expression))
                yield expression
                stack.extend(reversed(expression.children()))


class Several(Expression):
    """Any number of values in one place."""


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
    """An expression of an operand: a number becomes a literal, None an omitted input."""
    if isinstance(operand, VariadicVariable):
        raise TypeError(f"write *{operand!r}: a variadic variable stands for several inputs")
    if isinstance(operand, Expression):
        return operand
    if operand is None:
        return Omitted()
    if isinstance(operand, (bool, int, float)):
        return Literal(operand)
    if isinstance(operand, Term):
        raise TypeError(f"{operand!r} is not a value: write constant({operand!r}, dtype)")
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

    weight = 6

    def __init__(self, name: str, *, constant: bool = False) -> None:
        super().__init__(name)
        self.constant = constant

    def __iter__(self) -> Iterator[Rest]:
        yield Rest(self)


class Rest(Several):
    """A variadic variable in its place among the inputs."""

    weight = 6

    def __init__(self, variable: VariadicVariable) -> None:
        self.variable = variable

    def children(self) -> Sequence[Expression]:
        """The variable."""
        return (self.variable,)

    def __repr__(self) -> str:
        return f"*{self.variable!r}"


class Optional(Expression):
    """An input that may be omitted."""

    weight = 6

    def __init__(self, inner: Expression) -> None:
        self.inner = inner

    def children(self) -> Sequence[Expression]:
        """What it is if it is there."""
        return (self.inner,)

    def __repr__(self) -> str:
        return f"optional({self.inner!r})"


class Omitted(Expression):
    """No input here: ``None`` in a pattern or replacement."""

    weight = 0

    def __repr__(self) -> str:
        return "None"


class RootResult(Expression):
    """The value that the pattern's root makes, in conditions: ``same_shape(x, result)``."""

    def __repr__(self) -> str:
        return "result"


result = RootResult()


# -------------------------------------------------------------------- attributes


class AttributeVariable(Term):
    """Stands for the value of an attribute: int, float, str, or a tuple of them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def evaluate(self, match: Match) -> Any:
        """The value that was bound."""
        return match.bindings[self]

    def variables(self) -> Iterator[object]:
        """Itself."""
        yield self

    def __repr__(self) -> str:
        return self.name


class OptionalAttribute:
    """An attribute that may be missing (and has no default): the variable is None then."""

    def __init__(self, variable: AttributeVariable) -> None:
        self.variable = variable

    def __repr__(self) -> str:
        return f"optional({self.variable!r})"


class _Special:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


absent = _Special("absent")
"""In a pattern: the attribute is not written at the node."""

anything = _Special("anything")
"""In a pattern: whatever the attribute is, there or not."""


# -------------------------------------------------------------------- constants


class Literal(Expression):
    """A number. A pattern matches a constant of one element with exactly that value."""

    weight = 1

    def __init__(self, number: float) -> None:
        self.number = number

    def __repr__(self) -> str:
        return repr(self.number)


class Near(Expression):
    """A constant of one element that is the number, as precisely as a float16 has it."""

    weight = 1

    def __init__(self, number: float) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"near({self.number:.6g})"


class Filled(Variable):
    """A constant of any shape all of whose elements are the number."""

    weight = 1

    def __init__(self, number: float) -> None:
        super().__init__(f"filled({number!r})")
        self.number = number

    def named(self, name: str) -> Filled:
        """Give the constant the name under which conditions ask for it."""
        self.name = name
        return self


class MadeConstant(Expression):
    """A small constant that a replacement makes from a term or number."""

    def __init__(self, content: object, dtype: object, like: Expression | None) -> None:
        self.content = content
        self.dtype = dtype
        self.like = like

    def children(self) -> Sequence[Expression]:
        """The value whose dtype it takes."""
        return () if self.like is None or self.like is result else (self.like,)

    def __repr__(self) -> str:
        return f"constant({self.content!r})"


_CONSTANTS = (ConstantVariable, Literal, Near, Filled, MadeConstant, Omitted)

# -------------------------------------------------------------------- ops


class AnyOf(Expression):
    """One of several patterns, the first that leads to a match."""

    weight = 4

    def __init__(self, choices: Sequence[Expression]) -> None:
        self.choices = choices

    def children(self) -> Sequence[Expression]:
        """The choices."""
        return self.choices

    def __repr__(self) -> str:
        return f"any_of({', '.join(map(repr, self.choices))})"


class Swap:
    """Stands for a truth: the operands of an op are the other way round."""


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
        """The op that matches, or that has matched."""
        return Op(self.domain, self.op_types, operands, attributes, self)

    def found_in(self, bindings: Bindings) -> Any:
        """The node that an op of the pattern matched."""
        return bindings[self]

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
        """How many outputs a new node has, a number or term; None for as many as are used."""
        self.attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes.items()
        }
        self.variable = variable
        self.name = ""

    def __getitem__(self, index: Any) -> OutputOf:
        return OutputOf(self, index)

    def named(self, name: str) -> Op:
        """Give the op the name under which conditions and computed attributes ask for it."""
        self.name = name
        return self

    @property
    def outputs(self) -> AllOutputs:
        """All outputs: ``op.Concat(*split.outputs, axis=0) >> x``."""
        return AllOutputs(self)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("name the outputs that you mean: split[0], split[1], *split.outputs")

    def found_in(self, bindings: Bindings) -> Any:
        """The first output of the node that matched."""
        return bindings[self].outputs[0]

    def children(self) -> Sequence[Expression]:
        """The operands."""
        return self.operands

    def __repr__(self) -> str:
        arguments = [repr(o) for o in self.operands]
        arguments += [f"{name}={value!r}" for name, value in self.attributes.items()]
        text = f"{'|'.join(self.op_types)}({', '.join(arguments)})"
        return f"{self.name} := {text}" if self.name else text


class AllOutputs(Several):
    """All outputs of an op, as many as there are, in their order.

    As a whole pattern: each is replaced by one of all outputs of another op.
    """

    weight = 2

    def __init__(self, op: Op) -> None:
        self.op = op

    def __iter__(self) -> Iterator[AllOutputs]:
        yield self

    def children(self) -> Sequence[Expression]:
        """The op."""
        return (self.op,)

    def __repr__(self) -> str:
        return f"*{self.op!r}.outputs"


class OutputOf(Expression):
    """One output of an op with several.

    Args:
        op: The op.
        index: Which one; in a replacement a term, too.
    """

    weight = 2

    def __init__(self, op: Op, index: Any) -> None:
        self.op = op
        self.index = index

    def found_in(self, bindings: Bindings) -> Any:
        """That output of the node that matched."""
        return bindings[self.op].outputs[self.index]

    def children(self) -> Sequence[Expression]:
        """The op."""
        return (self.op,)

    def __repr__(self) -> str:
        return f"{self.op!r}[{self.index}]"
