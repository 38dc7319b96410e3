"""Compare the facts of the analysis about every value with the results of onnxruntime."""

import copy
from collections.abc import Mapping

import numpy as np
import onnx

from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage
from onnxfold.ir.symbolic import Algebra, Expr
from tests.reference_session import reference_session, same_bits


class Evaluation:
    """The values of symbols in one run.

    The first size or element that is a symbol determines the value of the symbol.
    """

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra
        self.atoms: dict[int, int] = {}

    def holds(self, number: object, actual: int, bits: int = 64) -> bool:
        """Return False if a number differs from `actual` in this run, modulo ``2 ** bits``.

        If the number is a symbol without a value, bind the symbol to `actual`. In this case, return
        whether `actual` is within the bounds of the symbol. If the number depends on other symbols
        without a value, return True.
        """
        if isinstance(number, Expr):
            atom = self._algebra.atom_of(number)
            index = number.terms[0][0][0] if number.terms[0][0] else -1
            if atom is not None and atom.op in SYMBOLS and index not in self.atoms:
                self.atoms[index] = actual
                return atom.low <= actual <= atom.high
        value = self.value(number)
        return value is None or not (value - actual) % (1 << bits)

    def value(self, number: object) -> int | None:
        """Return the number in this run, or None if it depends on symbols without a value."""
        if not isinstance(number, Expr):
            return int(number)
        total = 0
        for monomial, coefficient in number.terms:
            for index in monomial:
                factor = self._atom(index)
                if factor is None:
                    return None
                coefficient *= factor
            total += coefficient
        return total

    def _atom(self, index: int) -> int | None:
        if index not in self.atoms:
            atom = self._algebra.atoms[index]
            if atom.op in SYMBOLS:
                return None
            operands = [self.value(a) for a in atom.args]
            if None in operands:
                return None
            self.atoms[index] = FUNCTIONS[atom.op](*operands)
        return self.atoms[index]


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b) if b else 0
    return quotient if (a < 0) == (b < 0) else -quotient


SYMBOLS = ("symbol", "exact")
"""Ops of atoms without operands. Sizes and elements of a run determine the values of the atoms."""
FUNCTIONS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "floor_div": lambda a, b: a // b if b else 0,
    "trunc_div": truncated,
    "where": lambda c, a, b: a if c else b,
    "broadcast": lambda a, b: b if a == 1 else a,
    "equal": lambda a: int(a == 0) if abs(a) < 1 << 31 else None,  # a large number may wrap to 0
    "negative": lambda a: int(a < 0),
}


class FactCheck:
    """Checks the facts of all values of a model's main graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        opened = storage.from_proto(model)
        self._analysis = ModelFacts(opened).types
        self._values = {v.name: v for node in opened.graph for v in node.outputs if v.name} | {
            v.name: v for v in opened.graph.inputs
        }
        widened = copy.deepcopy(model)
        del widened.graph.value_info[:]
        del widened.graph.output[:]
        for name, value in self._values.items():
            fact = self._analysis.of(value)
            if value.producer() is not None and fact.dtype is not None and not fact.type_proto:
                widened.graph.output.append(
                    onnx.helper.make_tensor_value_info(name, fact.dtype.value, None)
                )
        self._session = reference_session(widened)

    def check(self, feeds: Mapping[str, np.ndarray]) -> int:
        """Assert that all facts hold in a run, and return the number of checked sizes and elements.

        Return 0 if onnxruntime rejects the feeds.
        """
        names = [o.name for o in self._session.get_outputs()]
        try:
            results = self._session.run(None, dict(feeds))
        except Exception:  # onnxruntime raises a separate class for each status code
            return 0
        arrays = {**feeds, **dict(zip(names, results, strict=True))}
        evaluation = Evaluation(self._analysis.algebra)
        count = 0
        for name, array in arrays.items():
            fact = self._analysis.of(self._values[name])
            array = np.asarray(array)
            if fact.shape is not None:
                assert len(fact.shape) == array.ndim, name
                for size, actual in zip(fact.shape, array.shape, strict=True):
                    assert evaluation.holds(size, actual), (name, fact.shape, array.shape)
                    count += 1
            if fact.is_symbolic:
                for item, actual in zip(fact.items.flat, array.flat, strict=True):
                    bits = 8 * array.itemsize
                    assert evaluation.holds(item, int(actual), bits), (name, fact.items, array)
                    count += 1
            # onnxruntime omits some roundings to float16
            elif fact.known is not None and array.dtype != np.float16:
                assert same_bits(array, fact.known), (name, fact.known, array)
                count += array.size
        return count
