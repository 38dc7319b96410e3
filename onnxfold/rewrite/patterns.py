"""The expressions that patterns and replacements are made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

import onnx_ir as ir

from onnxfold.rewrite.terms import Term

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Bindings, Match, Matching

Goal = tuple["Expression", Any]
"""A pattern and what it has to match: a value, None for an omitted input, or a tuple of values."""

Alternatives = Sequence[Sequence[Goal]]
"""Ways to go on: each is a list of goals that all must be met. Empty means: no match."""

FAIL: Alternatives = ()
DONE: Alternatives = ((),)

Operand = Union["Expression", float, None]


class Expression:
    """A value in a pattern or in a replacement."""

    weight = 1
    """Order in which goals are tried: what rules out the most comes first."""

    def __rshift__(self, replacement: Operand) -> Pair:
        return Pair([self], [as_expression(replacement)])

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match a value; what is left to match, in as many ways as there are."""
        raise NotImplementedError

    def children(self) -> Sequence[Expression]:
        """The operands."""
        return ()

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


class Pair:
    """``pattern >> replacement``, before it becomes a rule."""

    def __init__(self, patterns: Sequence[Expression], replacements: Sequence[Expression]) -> None:
        self.patterns = patterns
        self.replacements = replacements


class Outputs:
    """Several results: ``outputs(p, q) >> outputs(r, s)``."""

    def __init__(self, expressions: Sequence[Expression]) -> None:
        self.expressions = expressions

    def __rshift__(self, replacement: Outputs) -> Pair:
        if not isinstance(replacement, Outputs):
            raise TypeError("several outputs are replaced by several: outputs(...) >> outputs(...)")
        return Pair(self.expressions, replacement.expressions)


def outputs(*expressions: Operand) -> Outputs:
    """Several results of a pattern or replacement, in the same order on both sides."""
    return Outputs([as_expression(e) for e in expressions])


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

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Bind the value, or compare with what is bound."""
        if value is None:
            return FAIL
        if self in bindings:
            return DONE if matching.same(bindings[self], value) else FAIL
        bindings[self] = value
        return DONE


class ConstantVariable(ValueVariable):
    """Any compile-time constant."""

    weight = 1

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Bind the value if it is constant."""
        if value is None or not matching.facts.known.is_constant(value):
            return FAIL
        return super().expand(value, bindings, matching)


class VariadicVariable(Variable):
    """Any number of inputs, none included: ``op.Concat(*xs, axis=a)``."""

    weight = 6

    def __init__(self, name: str, *, constant: bool = False) -> None:
        super().__init__(name)
        self.constant = constant

    def __iter__(self) -> Iterator[Rest]:
        yield Rest(self)


class Rest(Expression):
    """A variadic variable in its place among the inputs."""

    weight = 6

    def __init__(self, variable: VariadicVariable) -> None:
        self.variable = variable

    def children(self) -> Sequence[Expression]:
        """The variable."""
        return (self.variable,)

    def expand(self, value: Any, bindings: Bindings, matching: Matching) -> Alternatives:
        """Bind a tuple of values."""
        if self.variable.constant and not all(
            v is not None and matching.facts.known.is_constant(v) for v in value
        ):
            return FAIL
        bound = bindings.setdefault(self.variable, value)
        return DONE if bound == value else FAIL

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

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Bind None if the input is not there."""
        if value is not None:
            return (((self.inner, value),),)
        for expression in self.inner.walk():
            if isinstance(expression, Variable):
                bound = bindings.setdefault(expression, None)
                if bound is not None:
                    return FAIL
        return DONE

    def __repr__(self) -> str:
        return f"optional({self.inner!r})"


class Omitted(Expression):
    """No input here: ``None`` in a pattern or replacement."""

    weight = 0

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match only an omitted input."""
        return DONE if value is None else FAIL

    def __repr__(self) -> str:
        return "None"


class Result(Expression):
    """The value that the pattern's root makes, in conditions: ``same_shape(x, result)``."""

    def __repr__(self) -> str:
        return "result"


result = Result()


# -------------------------------------------------------------------- constants


class Literal(Expression):
    """A number. A pattern matches a constant of one element with exactly that value."""

    weight = 1

    def __init__(self, number: float) -> None:
        self.number = number

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match a scalar or one-element constant."""
        return DONE if value is not None and matching.is_number(value, self.number) else FAIL

    def __repr__(self) -> str:
        return repr(self.number)


class Filled(Expression):
    """A constant of any shape all of whose elements are the number."""

    weight = 1

    def __init__(self, number: float) -> None:
        self.number = number

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match a uniform constant."""
        known = matching.facts.known
        return DONE if value is not None and known.all_equal(value, self.number) else FAIL

    def __repr__(self) -> str:
        return f"filled({self.number!r})"


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


# -------------------------------------------------------------------- alternatives


class AnyOf(Expression):
    """One of several patterns, the first that leads to a match."""

    weight = 4

    def __init__(self, choices: Sequence[Expression]) -> None:
        self.choices = choices

    def children(self) -> Sequence[Expression]:
        """The choices."""
        return self.choices

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Try each choice."""
        return [((choice, value),) for choice in self.choices]

    def __repr__(self) -> str:
        return f"any_of({', '.join(map(repr, self.choices))})"


# -------------------------------------------------------------------- ops


class OpVariable:
    """An op of several possible types; the replacement can make the same op again.

    ``f = op.any_of("Relu", "Sigmoid")``: ``f(x)`` in a pattern matches either with whatever
    attributes; ``f(y)`` in the replacement is the op that matched, with the same attributes except
    those that are given anew (None removes one).
    """

    def __init__(self, domain: str, op_types: Sequence[str]) -> None:
        self.domain = domain
        self.op_types = tuple(op_types)

    def __call__(self, *operands: Operand, **attributes: Any) -> Op:
        """The op that matches, or that has matched."""
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
        self.output_count: int | None = attributes.pop("_outputs", None)
        self.attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes.items()
        }
        self.variable = variable
        self._has_rest = any(isinstance(o, Rest) for o in self.operands)
        self._order = sorted(range(len(self.operands)), key=lambda k: self.operands[k].weight)

    def __getitem__(self, index: int) -> OutputOf:
        return OutputOf(self, index)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("name the outputs that you mean: split[0], split[1]")

    def children(self) -> Sequence[Expression]:
        """The operands."""
        return self.operands

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match the node that makes the value as its first output."""
        node = None if value is None else value.producer()
        if node is None or value is None or value.index() != 0:
            return FAIL
        return self.expand_node(node, bindings, matching)

    def expand_node(self, node: ir.Node, bindings: Bindings, matching: Matching) -> Alternatives:
        """Match a node: op, attributes, and then its inputs in every possible order."""
        if node.op_type not in self.op_types or not matching.is_op(node, self.domain):
            return FAIL
        bound = bindings.get(self)
        if bound is not None:
            return DONE if bound is node else FAIL
        if not matching.bind_op(self, node, bindings):
            return FAIL
        bindings[self] = node
        inputs = node.inputs
        if self._has_rest:
            return self._spread(inputs)
        operands = self.operands
        count = len(operands)
        if len(inputs) > count and any(v is not None for v in inputs[count:]):
            return FAIL
        given = [inputs[k] if k < len(inputs) else None for k in range(count)]
        straight = [(operands[k], given[k]) for k in self._order]
        if count == 2 and matching.is_commutative(node) and given[0] is not given[1]:
            return (straight, [(operands[k], given[1 - k]) for k in self._order])
        return (straight,)

    def _spread(self, inputs: Sequence[ir.Value | None]) -> Alternatives:
        """Every way to give the variadic variables their share of the inputs."""
        rests = sum(isinstance(o, Rest) for o in self.operands)
        surplus = len(inputs) - (len(self.operands) - rests)
        if surplus < 0:
            return FAIL
        ways = []
        for cuts in itertools.combinations_with_replacement(range(surplus + 1), rests - 1):
            sizes = [b - a for a, b in itertools.pairwise((0, *cuts, surplus))]
            goals: list[Goal] = []
            position = 0
            for operand in self.operands:
                if isinstance(operand, Rest):
                    size = sizes.pop(0)
                    goals.append((operand, tuple(inputs[position : position + size])))
                    position += size
                else:
                    goals.append((operand, inputs[position]))
                    position += 1
            ways.append(goals)
        return ways

    def __repr__(self) -> str:
        arguments = [repr(o) for o in self.operands]
        arguments += [f"{name}={value!r}" for name, value in self.attributes.items()]
        return f"{'|'.join(self.op_types)}({', '.join(arguments)})"


class OutputOf(Expression):
    """One output of an op with several."""

    weight = 2

    def __init__(self, op: Op, index: int) -> None:
        self.op = op
        self.index = index

    def children(self) -> Sequence[Expression]:
        """The op."""
        return (self.op,)

    def expand(
        self, value: ir.Value | None, bindings: Bindings, matching: Matching
    ) -> Alternatives:
        """Match the node that makes the value as that output."""
        node = None if value is None else value.producer()
        if node is None or value is None or value.index() != self.index:
            return FAIL
        return self.op.expand_node(node, bindings, matching)

    def __repr__(self) -> str:
        return f"{self.op!r}[{self.index}]"


# -------------------------------------------------------------------- attributes


class AttributeVariable(Term):
    """Stands for the value of an attribute: int, float, str, or a tuple of them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def evaluate(self, match: Match) -> Any:
        """The value that was bound."""
        return match[self]

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


# -------------------------------------------------------------------- making them


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


def values(names: str) -> Any:
    """Variables for values, a starred name for any number of them.

    As in ``x, y, xs = values("x y *xs")``.
    """
    return _named(names, ValueVariable, VariadicVariable)


def constants(names: str) -> Any:
    """Variables for constants, a starred name for any number of them.

    As in ``c, cs = constants("c *cs")``.
    """
    return _named(names, ConstantVariable, lambda name: VariadicVariable(name, constant=True))


def attributes(names: str) -> Any:
    """Variables for attributes.

    As in ``p, q = attributes("p q")``.
    """
    return _named(names, AttributeVariable, None)


def _named(names: str, make: Any, make_variadic: Any) -> Any:
    made = []
    for name in names.replace(",", " ").split():
        if name.startswith("*"):
            if make_variadic is None:
                raise TypeError(f"{name}: an attribute variable cannot be variadic")
            made.append(make_variadic(name[1:]))
        else:
            made.append(make(name))
    return made[0] if len(made) == 1 else tuple(made)


def optional(thing: Any) -> Any:
    """An input or attribute that may be missing; the variable is None then.

    An omitted input that the replacement refers to is omitted there, too.
    """
    if isinstance(thing, AttributeVariable):
        return OptionalAttribute(thing)
    return Optional(as_expression(thing))


def any_of(*choices: Operand) -> Expression:
    """One of several patterns: the first that leads to a match."""
    return AnyOf([as_expression(choice) for choice in choices])


def filled(number: float) -> Expression:
    """In a pattern: a constant of any shape all of whose elements are the number."""
    return Filled(number)


def constant(content: Any, dtype: Any = None, *, like: Expression | None = None) -> Expression:
    """In a replacement: a small constant made from a number, a list, or a term.

    Args:
        content: The elements: ``constant(shape_of(x))``, ``constant([0, -1])``.
        dtype: An ``ir.DataType`` or a term for one; int64 for whole numbers if not given.
        like: A value whose dtype it takes; ``result`` for the dtype of what is replaced.
    """
    return MadeConstant(content, dtype, like)
