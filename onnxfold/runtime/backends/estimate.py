"""Estimate whether a compiled kernel for a component pays, before anything is compiled.

A kernel saves the memory traffic between ops: it reads the operands once and writes the results
once, where onnxruntime reads and writes at each op. It is slower at matrix products. All is counted
in bytes that could be read from memory in the same time, as in `onnxfold.runtime.splitting`. The
constants are measured by ``python -m tests.benchmarks kernels``. A kernel is timed before it is
used, so a wrong estimate costs a compilation, or a saving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxfold.analysis.operation_counts import operations_of
from onnxfold.ops import Trait, ops
from onnxfold.runtime.splitting.parts import behind, operands_of
from onnxfold.runtime.splitting.runtime_cut import BYTES_PER_FLOP, PRODUCTS, NominalSizes

WRITING = 2.0
"""Bytes for each byte that is written: new memory is also cleared."""

KERNEL_BYTES_PER_FLOP = 2 * BYTES_PER_FLOP
"""Bytes for each floating-point operation of a product in a kernel."""

HEAVY = 6.0
"""Bytes for each byte of an operand of Exp, Tanh and the like, in kernels and in onnxruntime."""

MOST = 0.7
"""A kernel is compiled if its estimated time is at most this share of onnxruntime's."""

LEAST = 4 << 20
"""And if it saves so many bytes: about half a millisecond."""

_NOT_FUSED = (*ops(Trait.REDUCES), "Transpose", "Softmax", "LogSoftmax", "LayerNormalization")
"""Ops of which a kernel reads the operand once more, or whose result it stores."""


def reasons_not_to_compile(
    fold: ir.Model, components: Sequence[Sequence[str]], nominal: Mapping[str, int]
) -> dict[str, str]:
    """Return the reasons why kernels would not pay, by the first output of the component.

    Args:
        fold: All of runtime_fold.
        components: Names of the outputs of each component.
        nominal: Sizes of symbolic dimensions by name.
    """
    sizes = NominalSizes(fold, fold.graph.inputs, nominal)
    made = {v.name: v for v in fold.graph.outputs}
    reasons = {}
    for names in components:
        theirs, ours = costs_of([made[name] for name in names], sizes)
        if ours > MOST * theirs:
            reasons[names[0]] = "a kernel would hardly be faster: there is too little to fuse"
        elif theirs - ours < LEAST:
            reasons[names[0]] = "it is too small for a kernel to pay"
    return reasons


def costs_of(outputs: Sequence[ir.Value], sizes: NominalSizes) -> tuple[float, float]:
    """Return the estimated cost of a component on onnxruntime and as a kernel, in bytes.

    Args:
        outputs: The results of the component.
        sizes: Nominal sizes of its values.
    """
    nodes, read = behind(outputs)
    theirs = 0.0
    ours = sum(sizes.nbytes(v) or 0 for v in read) + WRITING * _bytes(outputs, sizes)
    for node in nodes:
        before, after = _bytes(operands_of(node), sizes), _bytes(node.outputs, sizes)
        if node.op_type in ops(Trait.FREE) or node.op_type == "Constant":
            continue
        theirs += before + WRITING * after
        if node.op_type in PRODUCTS:
            _, flops = operations_of(node, sizes.shape) or (0, 0)
            theirs += BYTES_PER_FLOP * flops
            ours += KERNEL_BYTES_PER_FLOP * flops
        elif node.op_type in ops(Trait.HEAVY):
            theirs += HEAVY * max(before, after)
            ours += HEAVY * max(before, after)
        elif node.op_type in ops(Trait.UNBOUNDED):
            return 0.0, 1.0  # its work is not known
        if node.op_type in _NOT_FUSED:
            ours += before
    return theirs, ours


def _bytes(values: Sequence[ir.Value], sizes: NominalSizes) -> int:
    return sum(sizes.nbytes(v) or 0 for v in values)
