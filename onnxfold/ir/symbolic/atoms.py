"""Polynomials with integer coefficients in a normal form, and atoms, which are their variables.

Equal polynomials have equal terms. An atom is a symbol or an operation that is not expanded to a
polynomial. A symbol represents an unknown integer, and has a name if the integer is a named size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Monomial = tuple[int, ...]
"""Ascending indices of the atoms in a product. An atom may occur repeatedly."""
Bound = int | float
"""An integer, or a positive or negative infinity."""

INFINITY = math.inf


class NotKnown(Exception):
    """Raised if a result depends on the value of an expression that is known only at run time."""


@dataclass(eq=False, slots=True)
class Expr:
    """A polynomial that is not an integer. An algebra has one object for equal polynomials."""

    terms: tuple[tuple[Monomial, int], ...]
    """Monomials with nonzero coefficients, sorted by monomial."""
    low: Bound
    """Lower bound of the value in every run."""
    high: Bound
    """Upper bound of the value in every run."""


def _not_known(self: Expr, other: object) -> Any:
    raise NotKnown


# Python's arithmetic and order operators raise `NotKnown`, because an operation requires the
# algebra of its operands.
_OPERATORS = ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow")
for _name in (*_OPERATORS, *(f"r{name}" for name in _OPERATORS), "lt", "le", "gt", "ge"):
    setattr(Expr, f"__{_name}__", _not_known)

Number = int | Expr


def wrapped(number: int) -> int:
    """Return an integer wrapped to a signed 64-bit integer."""
    if -(1 << 63) <= number < 1 << 63:
        return number
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def terms_of(number: Number) -> tuple[tuple[Monomial, int], ...]:
    """Return the monomials of a number with coefficients. An integer has the empty monomial."""
    return (((), number),) if isinstance(number, int) else number.terms


def in_order(a: Number, b: Number) -> tuple[Number, Number]:
    """Return two operands of a commutative operation in a canonical order."""
    return (a, b) if terms_of(a) <= terms_of(b) else (b, a)


def leading_term(number: Number) -> tuple[Monomial, int]:
    """Return the largest term by the degree and then the indices of its monomial.

    Multiplication by a monomial preserves this order.
    """
    return max(terms_of(number), key=lambda term: (len(term[0]), term[0]))


def without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """Return the quotient of two monomials, or None if the quotient is not a monomial."""
    remaining = list(monomial)
    for index in divisor:
        if index not in remaining:
            return None
        remaining.remove(index)
    return tuple(remaining)


@dataclass(eq=False, slots=True)
class Atom:
    """A variable of the polynomials: a symbol or an operation that is not expanded to a polynomial.

    ``args`` contains the name of a named symbol, or the operands of an operation. ``low`` and
    ``high`` are bounds of the value in every run.
    """

    op: str
    args: tuple[object, ...]
    low: Bound
    high: Bound

    @property
    def is_dim(self) -> bool:
        """Whether the atom is a size with a name."""
        return self.op == "symbol" and bool(self.args)


class Atoms:
    """The atoms of a model, and the bounds of expressions."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.unnamed = 0
        """The number of symbols without a name."""
        self.bound_queries = 0
        """The number of queries for bounds of expressions."""
        self.required: list[Number] = []
        """Numbers that must be at least 0, because the visited ops fail otherwise."""
        self.sizes: dict[str, Expr] = {}
        """The expressions in inputs of onnx's shape inference, by the names that represent them."""
        self._interned: dict[tuple[object, ...], Expr] = {}
        self._expressions: dict[tuple[tuple[Monomial, int], ...], Expr] = {}

    def symbol(self, name: str | None = None, low: Bound = 0) -> Expr:
        """Return the size with this name, or a new size without a name if the name is None.

        ``low`` is the lower bound of a new size. An existing size keeps its bounds.
        """
        return self.unknown(low) if name is None else self._atom("symbol", (name,), low, INFINITY)

    def size_of(self, name: str | None) -> Expr | None:
        """Return the size with this name; None if it does not exist."""
        return self._interned.get(("symbol", name))

    def unknown(self, low: Bound = -INFINITY, high: Bound = INFINITY) -> Expr:
        """Return a new symbol without a name for an integer with these bounds."""
        self.unnamed += 1
        return self._new("symbol", (), low, high)

    def name_of(self, number: Number) -> str | None:
        """Return the name of a number that is a named symbol; None for other numbers."""
        atom = self.atom_of(number)
        return str(atom.args[0]) if atom is not None and atom.is_dim else None

    def atom_of(self, number: Number) -> Atom | None:
        """Return the atom of a number that is a single atom; None for other numbers."""
        if isinstance(number, int) or len(number.terms) != 1:
            return None
        monomial, coefficient = number.terms[0]
        return self.atoms[monomial[0]] if coefficient == 1 and len(monomial) == 1 else None

    def atoms_in(self, number: Number) -> set[int]:
        """Return the indices of the atoms in a number; an integer has none."""
        return {k for monomial, _ in terms_of(number) for k in monomial}

    def _atom(self, op: str, args: tuple[object, ...], low: Bound, high: Bound) -> Expr:
        key = (op, *args)
        expression = self._interned.get(key)
        if expression is None:
            expression = self._new(op, args, low, high)
            self._interned[key] = expression
        return expression

    def _new(self, op: str, args: tuple[object, ...], low: Bound, high: Bound) -> Expr:
        self.atoms.append(Atom(op, args, low, high))
        return self._expression((((len(self.atoms) - 1,), 1),))

    def is_size(self, number: Number) -> bool:
        """Return whether a number contains no unnamed symbol without a lower bound.

        Such a symbol represents an arbitrary element of a tensor, so a sum with it may wrap.
        """
        return all(
            self.atoms[k].low != -INFINITY or self.atoms[k].args for k in self.atoms_in(number)
        )

    def _expression(self, terms: tuple[tuple[Monomial, int], ...]) -> Expr:
        """Return the only expression with these sorted terms, which must not be an integer."""
        expression = self._expressions.get(terms)
        if expression is None:
            expression = Expr(terms, *self._bounds(terms))
            self._expressions[terms] = expression
        return expression

    def low(self, a: Number) -> Bound:
        """Return the lower bound of a number."""
        if isinstance(a, int):
            return a
        self.bound_queries += 1
        return a.low

    def high(self, a: Number) -> Bound:
        """Return the upper bound of a number."""
        if isinstance(a, int):
            return a
        self.bound_queries += 1
        return a.high

    def _bounds(self, terms: tuple[tuple[Monomial, int], ...]) -> tuple[Bound, Bound]:
        low: Bound = 0
        high: Bound = 0
        for monomial, coefficient in terms:
            term_low: Bound = coefficient
            term_high: Bound = coefficient
            for index in monomial:
                atom = self.atoms[index]
                bounds = (atom.low, atom.high)
                # 0 * infinity would be NaN
                ends = [x * y if x and y else 0 for x in (term_low, term_high) for y in bounds]
                term_low = min(ends)
                term_high = max(ends)
            low += term_low
            high += term_high
        return low, high

    def raise_lower_bounds(self, required: Iterable[Number]) -> bool:
        """Raise the lower bounds of atoms so that these numbers are at least 0.

        Only a positive multiple of one atom plus a constant implies a lower bound. The method
        ignores other numbers, and lower bounds above the upper bound of the atom.

        Returns:
            Whether a lower bound was raised.
        """
        raised = False
        for number in required:
            terms = [] if isinstance(number, int) else [(m, c) for m, c in number.terms if m]
            if len(terms) != 1 or len(terms[0][0]) != 1 or terms[0][1] < 1:
                continue
            ((index,), factor) = terms[0]
            constant = sum(c for m, c in terms_of(number) if not m)
            low = -(constant // factor)
            if self.atoms[index].low < low <= self.atoms[index].high:
                self.atoms[index].low = low
                raised = True
        if raised:
            for expression in self._expressions.values():
                expression.low, expression.high = self._bounds(expression.terms)
        return raised

    def is_positive(self, a: Number) -> bool:
        """Return whether a number is proved to be greater than 0."""
        return self.low(a) > 0
