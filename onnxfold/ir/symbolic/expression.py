"""Arithmetic on integers that are known only at run time, as polynomials in a normal form.

Most tests of shape inference compare two results for equality. Equal polynomials are the same
object, so such a test takes constant time. A general computer algebra system takes a hundred times
as long for each operation.

A non-polynomial operation, such as a floor division, a minimum or a selection, becomes an *atom*: a
variable for this operation on these operands. A sum or product above the limits also becomes an
atom. Equal operations are the same atom. Every atom has bounds, which may decide comparisons.
"""

from __future__ import annotations

import math

from onnxfold.ir.symbolic.atoms import (
    INFINITY,
    Atoms,
    Expr,
    Monomial,
    NotKnown,
    Number,
    in_order,
    leading_term,
    terms_of,
    without,
    wrapped,
)

__all__ = ["Algebra", "Expr", "NotKnown", "Number"]

# Limits of a polynomial. A sum or product that exceeds one of them becomes an atom. The number of
# terms also limits the steps of `exact_quotient`.
_MAX_TERMS = 16
_MAX_DEGREE = 8
_MAX_COEFFICIENT = 1 << 62


class Algebra(Atoms):
    """The atoms of one model, and arithmetic on expressions.

    Sums and products are computed modulo 2**64, as in int64 tensors. A sum or product with many
    terms becomes an atom, so that each operation takes bounded time.
    """

    def add(self, a: Number, b: Number) -> Number:
        """Return the sum."""
        if isinstance(a, int):
            if isinstance(b, int):
                return wrapped(a + b)
            a, b = b, a
        if b == 0:
            return a
        terms = dict(a.terms)
        for monomial, coefficient in terms_of(b):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return self._polynomial(terms, "add", a, b)

    def sub(self, a: Number, b: Number) -> Number:
        """Return the difference."""
        if a is b:
            return 0
        return self.add(a, self.mul(b, -1))

    def mul(self, a: Number, b: Number) -> Number:
        """Return the product."""
        if isinstance(a, int):
            if isinstance(b, int):
                return wrapped(a * b)
            a, b = b, a
        if b == 0:
            return 0
        if b == 1:
            return a
        terms: dict[Monomial, int] = {}
        for left, c in a.terms:
            for right, d in terms_of(b):
                monomial = tuple(sorted(left + right)) if left and right else left or right
                terms[monomial] = terms.get(monomial, 0) + c * d
        return self._polynomial(terms, "mul", a, b)

    def product(self, numbers: tuple[Number, ...] | list[Number]) -> Number:
        """Return the product of all numbers."""
        result: Number = 1
        for number in numbers:
            result = self.mul(result, number)
        return result

    def _polynomial(self, terms: dict[Monomial, int], op: str, a: Number, b: Number) -> Number:
        kept = sorted((m, c) for m, c in terms.items() if c)
        if not kept:
            return 0
        if len(kept) == 1 and not kept[0][0]:
            return wrapped(kept[0][1])
        too_large = (
            len(kept) > _MAX_TERMS
            or any(len(m) > _MAX_DEGREE for m, _ in kept)
            or any(abs(c) >= _MAX_COEFFICIENT for _, c in kept)
        )
        if too_large:
            return self._atom(op, in_order(a, b), -INFINITY, INFINITY)
        return self._expression(tuple(kept))

    def exact_quotient(self, a: Number, b: Number) -> Number | None:
        """Return q with a = q * b; None if ``b`` is 0 or no such polynomial is found."""
        if b == 0:
            return None
        if b == 1:
            return a
        if a is b:
            return 1
        if isinstance(a, int):
            if a == 0:
                return 0
            return a // b if isinstance(b, int) and a % b == 0 else None
        quotient: Number = 0
        remainder: Number = a
        divisor_monomial, divisor_coefficient = leading_term(b)
        for _ in range(_MAX_TERMS):
            if remainder == 0:
                return quotient
            monomial, coefficient = leading_term(remainder)
            factor = without(monomial, divisor_monomial)
            if factor is None or coefficient % divisor_coefficient:
                return None
            term: Number = coefficient // divisor_coefficient
            if factor:
                term = self._expression(((factor, coefficient // divisor_coefficient),))
            quotient = self.add(quotient, term)
            remainder = self.sub(remainder, self.mul(term, b))
        return quotient if remainder == 0 else None

    def floor_div(self, a: Number, b: Number) -> Number:
        """Return the quotient rounded down.

        The result for a divisor of 0 is arbitrary, because a valid model does not divide by 0.
        """
        exact = self.exact_quotient(a, b)
        if exact is not None:
            return exact
        if isinstance(a, int) and isinstance(b, int):
            return a // b if b else 0
        if not isinstance(b, int) or b <= 0:
            bounded = self.low(a) >= 0 and self.low(b) >= 0
            return self._atom("floor_div", (a, b), 0 if bounded else -INFINITY, INFINITY)
        quotient, remainder = self._divided_by_terms(a, b)
        if self.low(remainder) >= 0 and self.high(remainder) < b:
            return quotient
        inner = self.atom_of(remainder)
        if inner is not None and inner.op == "floor_div":
            dividend, divisor = inner.args
            if isinstance(divisor, int) and divisor > 0:
                # (x // c) // b == x // (c * b)
                b = divisor * b
                remainder = dividend  # type: ignore[assignment]
        low = self.low(remainder)
        high = self.high(remainder)
        atom = self._atom(
            "floor_div",
            (remainder, b),
            low if math.isinf(low) else low // b,
            high if math.isinf(high) else high // b,
        )
        return self.add(quotient, atom)

    def _divided_by_terms(self, a: Number, b: int) -> tuple[Number, Number]:
        """Return a quotient and a remainder with a = quotient * b + remainder.

        The constant term is divided with remainder. Any other term belongs to the quotient if ``b``
        divides its coefficient, and to the remainder otherwise.
        """
        quotient: list[tuple[Monomial, int]] = []
        remainder: list[tuple[Monomial, int]] = []
        for monomial, coefficient in terms_of(a):
            factor, difference = divmod(coefficient, b)
            if not difference or not monomial:
                quotient.append((monomial, factor))
                remainder.append((monomial, difference))
            else:
                remainder.append((monomial, coefficient))
        return (
            self._polynomial(dict(quotient), "add", a, 0),
            self._polynomial(dict(remainder), "add", a, 0),
        )

    def ceil_div(self, a: Number, b: int) -> Number:
        """Return the quotient by a positive integer, rounded up."""
        return -(-a // b) if isinstance(a, int) else self.floor_div(self.add(a, b - 1), b)

    def trunc_div(self, a: Number, b: Number) -> Number:
        """Return the quotient rounded toward 0, as Div does for integers.

        The result for a divisor of 0 is arbitrary; see `floor_div`.
        """
        exact = self.exact_quotient(a, b)
        if exact is not None:
            return wrapped(exact) if isinstance(exact, int) else exact
        if isinstance(a, int) and isinstance(b, int):
            quotient = abs(a) // abs(b) if b else 0
            return wrapped(quotient if (a < 0) == (b < 0) else -quotient)
        if self.low(a) >= 0 and self.low(b) >= 0:
            return self.floor_div(a, b)
        low = -INFINITY
        if isinstance(b, int) and b > 0 and not math.isinf(self.low(a)):
            low = -(-self.low(a) // b)
        return self._atom("trunc_div", (a, b), low, INFINITY)

    def minimum(self, a: Number, b: Number) -> Number:
        """Return the minimum of two numbers."""
        return self._extreme("min", a, b)

    def maximum(self, a: Number, b: Number) -> Number:
        """Return the maximum of two numbers."""
        return self._extreme("max", a, b)

    def _extreme(self, op: str, a: Number, b: Number) -> Number:
        choose = min if op == "min" else max
        if isinstance(a, int) and isinstance(b, int):
            return choose(a, b)
        difference = self.sub(a, b)
        if self.high(difference) <= 0:
            return a if op == "min" else b
        if self.low(difference) >= 0:
            return b if op == "min" else a
        return self._atom(
            op,
            in_order(a, b),
            choose(self.low(a), self.low(b)),
            choose(self.high(a), self.high(b)),
        )

    def where(self, condition: Number, a: Number, b: Number) -> Number:
        """Return the number that a condition of 0 or 1 selects: ``a`` for 1, ``b`` for 0.

        The result is an atom if the condition is not an integer and the numbers may differ.
        """
        if isinstance(condition, int):
            return a if condition else b
        if a == b:
            return a
        return self._atom(
            "where",
            (condition, a, b),
            min(self.low(a), self.low(b)),
            max(self.high(a), self.high(b)),
        )

    def broadcast(self, a: Number, b: Number) -> Number:
        """Return the broadcast size of two sizes.

        In a valid model, the sizes are equal or one of them is 1. The method returns an atom if
        this does not determine the broadcast size.
        """
        if a == b or b == 1:
            return a
        if a == 1:
            return b
        if isinstance(a, int) or isinstance(b, int):
            return a if isinstance(a, int) else b  # the other size is this integer or 1
        for one, other in ((a, b), (b, a)):
            if self._is_capped(one, other):
                return other
        return self._atom("broadcast", in_order(a, b), 0, INFINITY)

    def _is_capped(self, capped: Number, size: Number) -> bool:
        """Return whether ``capped`` is min(size, k) with an integer k >= 1.

        The broadcast size of such a number and ``size`` is ``size``.
        """
        atom = self.atom_of(capped)
        if atom is None or atom.op != "min" or size not in atom.args:
            return False
        cap = atom.args[1] if atom.args[0] == size else atom.args[0]
        return isinstance(cap, int) and cap >= 1

    def is_zero_with(self, a: Number, b: Number) -> bool:
        """Return whether the first number is proved to be 0 whenever the second is 0."""
        if self.exact_quotient(a, b) is not None:
            return True
        atom = self.atom_of(a)
        if atom is None or atom.op != "floor_div":
            return False
        return self.exact_quotient(atom.args[0], b) is not None  # type: ignore[arg-type]

    def equal(self, a: Number, b: Number) -> Number:
        """Return 1 if the numbers are equal in every run, 0 if they always differ, else an atom."""
        difference = self.sub(a, b)
        if isinstance(difference, int):
            return int(difference == 0)
        if self.low(difference) > 0 or self.high(difference) < 0:
            return 0
        if difference.terms[-1][1] < 0:
            difference = self.mul(difference, -1)
        return self._atom("equal", (difference,), 0, 1)

    def less(self, a: Number, b: Number) -> Number:
        """Return 1 if a < b in every run, 0 if a >= b in every run, else an atom."""
        if isinstance(a, int) and isinstance(b, int):
            return int(a < b)
        difference = self.sub(a, b)
        if self.high(difference) < 0:
            return 1
        if self.low(difference) >= 0:
            return 0
        return self._atom("negative", (difference,), 0, 1)
