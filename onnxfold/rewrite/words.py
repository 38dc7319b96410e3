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
    OpVariable,
    Outputs,
    Pair,
    ValueVariable,
    VariadicVariable,
    as_expression,
)
from onnxfold.rewrite.rule import Function, Rule, RuleError


def values(names: str) -> Any:
    """Make variables for values from their names, as in ``values("x y *xs")``.

    A starred name is a variable for any number of inputs.
    """
    return _named(
        names, lambda name: VariadicVariable(name[1:]) if name[0] == "*" else ValueVariable(name)
    )


def constants(names: str) -> Any:
    """Make variables for compile-time constants from their names."""
    return _named(names, ConstantVariable)


def attributes(names: str) -> Any:
    """Make variables for attributes from their names."""
    return _named(names, AttributeVariable)


def _named(names: str, make: Callable[[str], Any]) -> Any:
    made = tuple(map(make, names.split()))
    return made[0] if len(made) == 1 else made


def optional(operand: Operand) -> Expression:
    """Return an input that may be missing; the variable is None then.

    An omitted input that the replacement refers to is omitted there, too, and so is an op that
    needs it: with ``b`` omitted, ``op.Conv(x, w, op.Mul(b, c))`` is ``op.Conv(x, w)``.
    """
    return Optional(as_expression(operand))


def any_of(*choices: Operand) -> Expression:
    """Return one of several patterns: the first that leads to a match.

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
    """In a replacement: a small constant made from a number, a list, or a function for them.

    Args:
        content: The elements: ``constant([0, -1])``, ``constant(lambda x: x.shape)``.
        dtype: An ``ir.DataType`` or a function for one; int64 for whole numbers if not given.
        like: A value whose dtype it takes; ``result`` for the dtype of what is replaced.
    """
    return MadeConstant(content, dtype, like)


def outputs(*expressions: Operand) -> Outputs:
    """Several results of a pattern or replacement, in the same order on both sides.

    In a pattern, those after the first are results of ops in the first one.
    """
    return Outputs([as_expression(e) for e in expressions])


# -------------------------------------------------------------------- ops


class Ops:
    """The ops of a domain.

    ``op.Relu(x)`` is an op; an attribute that is not mentioned must have its default in a pattern,
    and gets it in a replacement. ``op.any_of("Relu", "Tanh")`` is an op variable (see
    `onnxfold.rewrite.patterns.OpVariable`), and so is ``op("Conv")`` for one op whose attributes
    are to be kept as they are. ``op.domain("com.microsoft")`` are another domain's ops.
    """

    def __init__(self, domain: str = "") -> None:
        self._domain = domain

    def __getattr__(self, op_type: str) -> Callable[..., Op]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        return lambda *operands, **attributes: Op(self._domain, (op_type,), operands, attributes)

    def __call__(self, op_type: str) -> OpVariable:
        """Return an op with whatever attributes."""
        return self.any_of(op_type)

    def any_of(self, *op_types: str) -> OpVariable:
        """Return one of several ops."""
        return OpVariable(self._domain, op_types)

    def either_way(self, *op_types: str) -> OpVariable:
        """Return one of several ops of two operands: ``f(x, c)`` matches ``c - x``, too.

        The replacement's ``f(y, d)`` has its operands in the order that matched: ``d - y`` then.
        """
        return OpVariable(self._domain, op_types, either_way=True)

    def domain(self, name: str) -> Ops:
        """Return the ops of another domain."""
        return Ops("" if name == "ai.onnx" else name)


op = Ops()


def rule(
    pair: Pair,
    *,
    where: Function | Sequence[Function] | None = None,
    inexact: bool | Function = False,
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
            infinity finite). Such a rule fires at level 2 only. A function is called for each
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
    frame = sys._getframe(1)
    file, line = frame.f_code.co_filename, frame.f_lineno
    where = [] if where is None else where
    try:
        if not isinstance(pair, Pair):
            raise TypeError("a rule is made of pattern >> replacement")
        made = Rule(
            pair,
            where=tuple(map(_as_condition, where if isinstance(where, (list, tuple)) else [where])),
            inexact=inexact if isinstance(inexact, bool) else _as_condition(inexact),
            opset=opset,
            doc=doc,
            file=file,
            line=line,
            benefit=benefit,
            target=target,
            shared=shared,
            on_constants=on_constants,
            seen_in=seen_in,
            # ours are checked by a test: that takes as long as making them
            ours=frame.f_globals.get("__name__", "").startswith("onnxfold.rules."),
        )
        if not made.ours:
            check_rule(made)
    except (TypeError, ValueError) as error:
        raise RuleError(f"rule at {os.path.basename(file)}:{line}: {error}") from error
    return made


def _as_condition(function: object) -> Function:
    if not callable(function):
        raise TypeError(f"{function!r} is no condition: write a function of the rule's variables")
    return function
