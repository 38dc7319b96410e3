"""Sizes as text for other tools: names of dimensions, and sums and products of them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from onnxfold.analysis.symbolic.expression import Algebra, Expr, Number
from onnxfold.analysis.symbolic.fact import Fact
from onnxfold.graphs import shaped

_LONGEST = 48
_WORD = re.compile(r"\w+\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Texts:
    """The texts of a model's sizes: two sizes have the same text if and only if they are equal.

    Other sizes than those of the inputs have none of the names that are ``taken`` there.
    """

    def __init__(self, algebra: Algebra, taken: Iterable[str]) -> None:
        self._algebra = algebra
        self._taken = {name.replace(" ", "") for name in taken}
        self._texts: dict[Expr, str | None] = {}
        self._atoms: list[str | None] = []

    def of_fact(self, fact: Fact) -> str:
        """Return a dtype and shape, such as ``float32[n,3]``."""
        sizes = fact.shape and [d if isinstance(d, int) else self.of(d) for d in fact.shape]
        return shaped(fact.dtype, sizes)

    def of(self, size: Number) -> str | None:
        """Return a dimension's name or an expression such as ``2*seq``; None for a long one.

        A size without a name (such as the number of nonzero elements) and its results have no text.
        """
        if isinstance(size, int):
            return None
        if size not in self._texts:
            text = self._algebra.name_of(size)
            if text is None:
                text = self._sum(size) or ""
                if not 0 < len(text) <= _LONGEST or text.replace(" ", "") in self._taken:
                    text = None
            self._texts[size] = text
        return self._texts[size]

    def _sum(self, size: Number) -> str | None:
        if isinstance(size, int):
            return str(size)
        terms = []
        for monomial, coefficient in size.terms:
            factors = [self._atom(index) for index in monomial]
            if any(f is None for f in factors):
                return None
            named = sorted(f for f in factors if f is not None)
            if abs(coefficient) != 1 or not named:
                named.insert(0, str(abs(coefficient)))
            terms.append((coefficient < 0, not monomial, "*".join(named)))
        terms.sort()
        text = " ".join(f"{'-' if negative else '+'} {term}" for negative, _, term in terms)
        return text[2:] if text.startswith("+ ") else f"-{text[2:]}"

    def _atom(self, index: int) -> str | None:
        # the operands of an atom have lower indexes, so ascending order avoids recursion
        for k in range(len(self._atoms), index + 1):
            text = self._atom_text(k)
            self._atoms.append(text if text is None or len(text) <= _LONGEST else None)
        return self._atoms[index]

    def _atom_text(self, index: int) -> str | None:
        atom = self._algebra.atoms[index]
        if atom.op == "symbol":
            name = str(atom.args[0]) if atom.args else ""
            return name if _NAME.match(name) else None
        if atom.op not in ("min", "max", "floor_div"):
            return None
        operands = [self._sum(a) if isinstance(a, (int, Expr)) else None for a in atom.args]
        if any(o is None for o in operands):
            return None
        if atom.op == "floor_div":
            whole, divisor = (o if _WORD.match(o or "") else f"({o})" for o in operands)
            return f"({whole}//{divisor})"
        return f"{atom.op}({', '.join(sorted(o for o in operands if o is not None))})"
