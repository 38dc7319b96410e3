"""Polynomials with integer coefficients, in a normal form: equal ones are the same tuples."""

from __future__ import annotations

import math

Monomial = tuple[int, ...]
"""Indexes of the atoms that are multiplied, ascending; an atom may occur more than once."""
Bound = int | float
"""A number or an infinity."""

INFINITY = math.inf


class Expr:
    """A polynomial that is not a plain number. Equal expressions are equal in every run."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Expr) and self.terms == other.terms

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


def split_by(a: Number, b: int) -> tuple[Number, Number]:
    """Whole and rest with a = whole * b + rest: whole multiples leave, term by term."""
    whole: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, coefficient in terms_of(a):
        quotient, remainder = divmod(coefficient, b)
        if not remainder or not monomial:
            whole.append((monomial, quotient))
            rest.append((monomial, remainder))
        else:
            rest.append((monomial, coefficient))
    return _number(whole), _number(rest)


def _number(terms: list[tuple[Monomial, int]]) -> Number:
    kept = tuple((m, c) for m, c in terms if c)
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Expr(kept)
