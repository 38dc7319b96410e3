"""The words that make expressions: variables, constants, alternatives, and the ops by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from onnxfold.rewrite.check import check_rule
from onnxfold.rewrite.patterns import (
    AnyOf,
    AttributeVariable,
    ConstantVariable,
    Expression,
    Filled,
    MadeConstant,
    Near,
    Op,
    Operand,
    Optional,
    OptionalAttribute,
    OpVariable,
    Outputs,
    Pair,
    ValueVariable,
    VariadicVariable,
    as_expression,
)
from onnxfold.rewrite.rule import Rule, RuleError
from onnxfold.rewrite.terms import as_condition


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

    An omitted input that the replacement refers to is omitted there, too, and so is an op that
    needs it: with ``b`` omitted, ``op.Conv(x, w, op.Mul(b, c))`` is ``op.Conv(x, w)``.
    """
    if isinstance(thing, AttributeVariable):
        return OptionalAttribute(thing)
    return Optional(as_expression(thing))


def any_of(*choices: Operand) -> Expression:
    """One of several patterns: the first that leads to a match.

    A variable that the chosen pattern does not have is None, as that of an omitted input. In a
    replacement: the first that is not omitted. With ``any_of(op.Add(x, b), x)`` in a pattern there
    may be an addition or none; ``any_of(op.Sub(y, b), y)`` in the replacement goes with it.
    """
    return AnyOf([as_expression(choice) for choice in choices])


def filled(number: float) -> Expression:
    """In a pattern: a constant of any shape all of whose elements are the number.

    -0.0 is not 0.0; a float that is asked for an integer constant is that integer.
    """
    return Filled(number)


def near(number: float) -> Expression:
    """In a pattern: a constant of one element that is the number, but for rounding to float16."""
    return Near(number)


def constant(content: Any, dtype: Any = None, *, like: Expression | None = None) -> Expression:
    """In a replacement: a small constant made from a number, a list, or a term.

    Args:
        content: The elements: ``constant(shape_of(x))``, ``constant([0, -1])``.
        dtype: An ``ir.DataType`` or a term for one; int64 for whole numbers if not given.
        like: A value whose dtype it takes; ``result`` for the dtype of what is replaced.
    """
    return MadeConstant(content, dtype, like)


def outputs(*expressions: Operand) -> Outputs:
    """Several results of a pattern or replacement, in the same order on both sides."""
    return Outputs([as_expression(e) for e in expressions])


# -------------------------------------------------------------------- ops


Condition = Callable[..., Any] | Sequence[Callable[..., Any]] | None
"""What ``where`` may be."""


class _Maker:
    """Makes expressions of one op."""

    def __init__(self, domain: str, op_type: str) -> None:
        self._domain = domain
        self._op_type = op_type

    def __call__(self, *operands: Operand, **attributes: Any) -> Op:
        return Op(self._domain, (self._op_type,), operands, attributes)


class Ops:
    """The ops of a domain.

    ``op.Relu(x)`` is an op; an attribute that is not mentioned must have its default in a pattern,
    and gets it in a replacement. ``op("Relu|Tanh")`` or ``op.any_of("Relu", "Tanh")`` is an op
    variable (see `onnxfold.rewrite.patterns.OpVariable`), also useful for one op whose
    attributes are to be kept as they are. ``op.domain("com.microsoft")`` are another domain's ops.
    """

    def __init__(self, domain: str = "") -> None:
        self._domain = domain

    def __getattr__(self, op_type: str) -> _Maker:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return _Maker(self._domain, op_type)

    def __call__(self, op_types: str) -> OpVariable:
        """One of several ops, written ``"Relu|Tanh"``."""
        return OpVariable(self._domain, [name.strip() for name in op_types.split("|")])

    def any_of(self, *op_types: str) -> OpVariable:
        """One of several ops."""
        return OpVariable(self._domain, op_types)

    def either_way(self, *op_types: str) -> OpVariable:
        """One of several ops of two operands: ``f(x, c)`` matches ``c - x``, too.

        The replacement's ``f(y, d)`` has its operands in the order that matched: ``d - y`` then.
        """
        return OpVariable(self._domain, op_types, either_way=True)

    def domain(self, name: str) -> Ops:
        """The ops of another domain."""
        return Ops("" if name == "ai.onnx" else name)


op = Ops()


def rule(
    pair: Pair,
    *,
    where: Condition = None,
    inexact: bool | Callable[..., Any] = False,
    benefit: int = 0,
    opset: tuple[int, int | None] = (1, None),
    target: str | None = None,
    shared: bool = False,
    on_constants: bool = False,
    doc: str = "",
    seen_in: str = "",
) -> Rule:
    """Make a rule of ``pattern >> replacement``.

    Args:
        pair: The pattern and what replaces it.
        where: A function that must be true for the rule to fire, or several in a list. It is called
            with what the variables stand for whose names its parameters have.
        inexact: Whether results can differ in their last bits (a NaN may also become a number, an
            infinity finite). Such a rule fires at level 2 only. A condition is asked for each
            match; unless it is certainly false the match counts as inexact.
        benefit: Of several rules that match, those with a higher benefit go first.
        opset: First and last version of ONNX's own ops for which the rule holds. Ops, attributes
            and input counts that a version does not have are found without it.
        target: The rule fires only if this target was asked for (``"onnxruntime"``).
        shared: Fire although nodes inside the pattern have other users, even if there are more
            nodes afterwards.
        on_constants: Fire also where the result is constant. Most of that is computed by constant
            propagation and needs no rule; this is for what it leaves because it would be larger.
        doc: What the rule does, in one line.
        seen_in: A model in which the rule fires: a package and a file in it, or an exporter and
            what it exports.

    Raises:
        RuleError: the rule cannot be right; the message says why and where it is written.
    """
    return _made(
        pair,
        where=where,
        inexact=inexact,
        benefit=benefit,
        opset=opset,
        target=target,
        shared=shared,
        on_constants=on_constants,
        doc=doc,
        seen_in=seen_in,
    )


def keep(
    pattern: Expression,
    *,
    where: Condition = None,
    opset: tuple[int, int | None] = (1, None),
    doc: str = "",
    seen_in: str = "",
) -> Rule:
    """Name a subgraph of which a runtime makes one kernel when it loads the model.

    An inexact rule does not fire where it would take some of these nodes and leave others: what it
    saves is less than what the runtime would no longer see. A rule that takes all of them may.

    Args:
        pattern: The subgraph.
        where: A condition, which must be true.
        opset: First and last version of ONNX's own ops for which it holds.
        doc: What the subgraph computes, in one line.
        seen_in: A model that has the subgraph.

    Raises:
        RuleError: the pattern cannot be right; the message says why and where it is written.
    """
    return _made(pattern >> pattern, where=where, opset=opset, doc=doc, seen_in=seen_in, keeps=True)


def _listed(conditions: Any) -> list[Any]:
    """No condition, one, or several, as a list."""
    if conditions is None:
        return []
    return list(conditions) if isinstance(conditions, (list, tuple)) else [conditions]


def _made(pair: Pair, *, where: Any, inexact: Any = False, **options: Any) -> Rule:
    """The rule, which knows where the caller of its caller has written it."""
    frame = sys._getframe(2)
    file, line = frame.f_code.co_filename, frame.f_lineno
    # ours are checked by a test: that takes as long as making them
    is_ours = frame.f_globals.get("__name__", "").startswith("onnxfold.rules.")
    try:
        if not isinstance(pair, Pair):
            raise TypeError("a rule is made of pattern >> replacement")
        made = Rule(
            pair,
            where=tuple(map(as_condition, _listed(where))),
            inexact=inexact if isinstance(inexact, bool) else as_condition(inexact),
            file=file,
            line=line,
            ours=is_ours,
            **options,
        )
        if not is_ours:
            check_rule(made)
    except (TypeError, ValueError) as error:
        raise RuleError(f"rule at {os.path.basename(file)}:{line}: {error}") from error
    return made
