"""Polynomials with integer coefficients, in a normal form: equal ones have the same terms."""

from __future__ import annotations

import math

Monomial = tuple[int, ...]
"""Indexes of the atoms that are multiplied, ascending; an atom may occur more than once."""
Bound = int | float
"""A number or an infinity."""

INFINITY = math.inf


class Expr:
    """A polynomial that is not a plain number. Equal expressions are equal in every run.

    An algebra makes one object for each polynomial: equality is identity.
    """

    __slots__ = ("high", "low", "terms", "youngest")

    def __init__(
        self, terms: tuple[tuple[Monomial, int], ...], low: Bound, high: Bound, youngest: int
    ) -> None:
        self.terms = terms
        self.low = low
        """A number that it is never below."""
        self.high = high
        """A number that it is never above."""
        self.youngest = youngest
        """Index of the last unnamed symbol that it depends on, or -1."""

    def __repr__(self) -> str:
        return " + ".join(
            "*".join([*([str(c)] if c != 1 or not m else []), *(f"a{k}" for k in m)])
            for m, c in self.terms
        )


Number = int | Expr


def wrapped(number: int) -> int:
    """A number as a 64-bit integer holds it."""
    if -(1 << 63) <= number < 1 << 63:
        return number
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def terms_of(number: Number) -> tuple[tuple[Monomial, int], ...]:
    """Monomials with coefficients; a plain number is that of the empty one."""
    return (((), number),) if isinstance(number, int) else number.terms


def in_order(a: Number, b: Number) -> tuple[Number, Number]:
    """Both, always in the same order: for operations where it does not matter."""
    return (a, b) if terms_of(a) <= terms_of(b) else (b, a)


def leading_term(number: Number) -> tuple[Monomial, int]:
    """The largest term in an order that multiplication keeps: by degree, then by exponents."""
    return max(terms_of(number), key=lambda term: (len(term[0]), term[0]))


def without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The monomial divided by another one, or None if it is not divisible."""
    rest = list(monomial)
    for index in divisor:
        if index not in rest:
            return None
        rest.remove(index)
    return tuple(rest)
