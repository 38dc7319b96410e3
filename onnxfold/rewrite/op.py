"""The ops by name, as ``op.Transpose(x, perm=p)``."""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite.patterns import Op, Operand, OpVariable


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
    variable (see :class:`~onnxfold.rewrite.patterns.OpVariable`), also useful for one op whose
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
