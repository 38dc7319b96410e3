"""Constants that are one number: terms and conditions of other rule sets (no rules of its own)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxfold.rewrite import computed
from onnxfold.rewrite.match import Match
from onnxfold.rewrite.patterns import Expression
from onnxfold.rewrite.predicates import Predicate, as_predicate
from onnxfold.rewrite.terms import Term


def number(match: Match, variable: Any) -> float | None:
    """The one element of a constant."""
    array = match.array(variable)
    return None if array is None or array.size != 1 else float(array.reshape(())[()])


def near(variable: Any, *wanted: float) -> Predicate:
    """The constant is one of the numbers, as precisely as a float16 has it."""

    def is_near(match: Match) -> bool:
        found = number(match, variable)
        return found is not None and any(math.isclose(found, n, rel_tol=1e-3) for n in wanted)

    return as_predicate(is_near)


def no_negative_zero(v: Expression) -> Predicate:
    """The value is a small constant without -0.0."""

    def has_none(match: Match) -> bool:
        array = match.array(v)
        if array is None:
            return False
        number = array.astype(np.float64)
        return not bool((np.signbit(number) & (number == 0)).any())

    return as_predicate(has_none)


def is_scale(op_type: str, v: Expression) -> Predicate:
    """The value is a small constant by which Mul or Div scales: a quotient by 0 is no number."""

    def has_no_zero(match: Match) -> bool:
        array = match.array(v)
        return op_type != "Div" or (array is not None and bool(np.all(array != 0)))

    return as_predicate(has_no_zero)


def number_of(variable: Any) -> Term:
    """The one element of a constant, as an attribute."""
    return computed(lambda match: number(match, variable))
