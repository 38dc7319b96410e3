"""What a component demands of its inputs, so that code which checks nothing computes it.

Compiled code looks at no operands: it reads what lies behind the shorter one, or at a place that is
none. So before a component is compiled, it has to be shown that nothing in it can fail
(`analysis.failures`). Sizes of inputs that must be the same for that are given one name here, or a
number, and callers are held to it. What two different expressions demand is not solved. An op of
which nobody knows which sizes must agree gets operands of constant sizes only: with those, trying
the kernel once has shown that they do.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onnxfold.analysis.failures import Failures
from onnxfold.analysis.symbolic import Algebra, Expr
from onnxfold.analysis.symbolic.atoms import terms_of
from onnxfold.graphs import is_constant_node
from onnxfold.runtime.backends.prepare import is_weight
from onnxfold.runtime.bundles.manifest import TensorInfo

_Sizes = list[int | str | None]


class Demands(NamedTuple):
    """What the inputs of a component must be.

    Attributes:
        inputs: Their types; sizes of the same name must be the same.
        reason: Why it may fail on inputs of such types; None if it can be compiled.
        memory: The bytes of all values of the component, as in a `Kernel`.
    """

    inputs: list[TensorInfo]
    reason: str | None
    memory: list[list[int | str]] = []  # noqa: RUF012  a tuple's fields are never changed


def demands(model: ir.Model) -> Demands:
    """Find out what the inputs of a component must be.

    Args:
        model: The component.
    """
    sizes: dict[ir.Value, _Sizes] = {}
    for value in model.graph.inputs:
        if value.shape is None:
            return Demands([], f"the rank of {value.name!r} is not known")
        dims = [d if isinstance(d, int) else d.value or None for d in value.shape]
        sizes[value] = [f"{value.name}.{k}" if d is None else d for k, d in enumerate(dims)]
    while True:
        # weights are inputs of kernels; trying the kernel shows that other constants are right
        failures = Failures(model, sizes, lambda tensor: not is_weight(tensor))
        found = (_reason(node, failures) for node in model.graph.all_nodes())
        reason = failures.reason or next(filter(None, found), None)
        pair = _equal_sizes(failures)
        if pair is None:
            types = {v: "undefined" if v.dtype is None else v.dtype.name.lower() for v in sizes}
            rows = failures.rows
            infos = [
                TensorInfo(v.name or "", types[v], sizes[v], rows=rows.get(v.name or ""))
                for v in sizes
            ]
            return Demands(infos, reason, [] if reason else _memory(model, failures))
        name, other = pair
        for value, dims in sizes.items():
            sizes[value] = [other if d == name else d for d in dims]


def _memory(model: ir.Model, failures: Failures) -> list[list[int | str]]:
    """Return the bytes of all values. A size that is computed by a division counts as what is
    divided.
    """
    algebra = failures.algebra
    counts: dict[tuple[str, ...], int] = {}
    nodes = model.graph.all_nodes()
    for value in (*model.graph.inputs, *(v for node in nodes for v in node.outputs if v.name)):
        fact = failures.fact(value)
        assert fact.shape is not None and fact.dtype is not None
        for monomial, count in terms_of(algebra.product(fact.shape)):
            names = tuple(sorted(name for k in monomial for name in _names(algebra, k)))
            nbytes = max(count, 0) * max(fact.dtype.bitwidth // 8, 1)
            counts[names] = counts.get(names, 0) + nbytes
    return [[nbytes, *names] for names, nbytes in counts.items()]


def _names(algebra: Algebra, index: int) -> set[str]:
    """Return the names of the sizes that an atom is made of."""
    atom = algebra.atoms[index]
    if atom.op == "symbol":
        return {str(atom.args[0])}
    terms = [term for arg in atom.args if isinstance(arg, Expr) for term in arg.terms]
    return {name for monomial, _ in terms for k in monomial for name in _names(algebra, k)}


def _reason(node: ir.Node, failures: Failures) -> str | None:
    reason = None if is_constant_node(node) else failures.why(node)
    return reason and f"{node.op_type} of {node.outputs[0].name!r}: {reason}"


def _equal_sizes(failures: Failures) -> tuple[str, str | int] | None:
    """Return a name of the inputs' sizes, and the size that must be the same; None if there is
    none.
    """
    for pair in failures.unequal:
        one, other = (n if isinstance(n, int) else failures.algebra.name_of(n) for n in pair)
        if one is not None and isinstance(other, str):
            return other, one
        if other is not None and isinstance(one, str):
            return one, other
    return None
