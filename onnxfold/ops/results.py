"""Inference of the facts of an op's results by its NumPy kernel or by `Op.shape`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.ir.symbolic.expression import Number
from onnxfold.ir.symbolic.fact import MAX_TRACKED_ELEMENTS, Array, Fact, list_of, of_array, of_items
from onnxfold.ops.application import Application
from onnxfold.ops.definition import Op
from onnxfold.ops.numpy_kernels import NotExact, Postpone, Unfoldable

# Maximum bytes of a computed result. A kernel that would allocate more raises Postpone.
_MAX_BYTES = 1 << 12


def facts_of_results(definition: Op, a: Application) -> Sequence[Fact]:
    """Return the facts of the results of an op.

    Raises:
        Undecided: The definition cannot infer the results.
        ArithmeticError, AttributeError, LookupError, TypeError, ValueError: The node is invalid.
    """
    if any(fact is not None and fact.items is not None for fact in a.inputs):
        computed = _computed(definition, a)
        if computed is not None:
            return computed
    return definition.shape(a)


def _computed(definition: Op, a: Application) -> Sequence[Fact] | None:
    """Return the facts of the results that the op's NumPy kernel computes.

    The elements of all operands must be known. Operands in `Op.moved_inputs` may also contain
    expressions. The kernel then moves indices of the elements instead of the elements.

    Returns:
        The facts, or None if the op has no kernel, an element of an operand is unknown, or the
        kernel cannot compute the results. None also if a result has too many elements, or is not an
        array of numbers or booleans.
    """
    kernel = definition.kernel
    if kernel is None:
        return None
    inputs = a.inputs
    arrays: list[Array | None] = [None if fact is None else fact.known for fact in inputs]
    items: list[Number] = []
    if any(fact is not None and fact.is_symbolic for fact in inputs):
        for k in definition.moved_inputs(len(inputs)):
            objects = a.objects(k)
            if objects is not None:
                numbers = np.arange(len(items), len(items) + objects.size)
                arrays[k] = numbers.reshape(objects.shape)
                items += objects.flat
    if any(array is None and fact is not None for array, fact in zip(arrays, inputs, strict=True)):
        return None
    try:
        with np.errstate(all="ignore"):
            results = kernel(arrays, a.attributes, n_outputs=a.n_outputs, max_bytes=_MAX_BYTES)
    except (NotExact, Unfoldable, Postpone):
        return None
    if any(r.size > MAX_TRACKED_ELEMENTS or r.dtype.kind not in "fiub" for r in results):
        return None
    dtype = a.fact(0).dtype
    if items and dtype is not None:
        moved = [list_of([items[k] for k in r.flat]).reshape(r.shape) for r in results]
        return [of_items(array, dtype, a.algebra) for array in moved]
    return [of_array(r, ir.DataType.from_numpy(r.dtype)) for r in results]
