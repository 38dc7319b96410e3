"""Defaults of attributes that the op's text defines but its schema does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.symbolic import SymbolicAnalysis

Implied = Callable[[ir.Node, SymbolicAnalysis], Any]
"""The default of an attribute at a node, or None if it cannot be told."""


def _rank(node: ir.Node, position: int, types: SymbolicAnalysis) -> int | None:
    value = node.inputs[position] if position < len(node.inputs) else None
    return None if value is None else types.of(value).rank


def _reversed_axes(node: ir.Node, types: SymbolicAnalysis) -> tuple[int, ...] | None:
    rank = _rank(node, 0, types)
    return None if rank is None else tuple(reversed(range(rank)))


def _spatial(node: ir.Node, types: SymbolicAnalysis) -> int | None:
    """Number of spatial axes of a convolution or pool."""
    kernel = node.attributes.get("kernel_shape")
    if kernel is not None and not kernel.is_ref():
        return len(kernel.value)
    rank = _rank(node, 0, types)
    return None if rank is None else rank - 2


def _ones(node: ir.Node, types: SymbolicAnalysis) -> tuple[int, ...] | None:
    spatial = _spatial(node, types)
    return None if spatial is None else (1,) * spatial


def _zero_pads(node: ir.Node, types: SymbolicAnalysis) -> tuple[int, ...] | None:
    spatial = _spatial(node, types)
    return None if spatial is None else (0,) * (2 * spatial)


def _zero_output_padding(node: ir.Node, types: SymbolicAnalysis) -> tuple[int, ...] | None:
    spatial = _spatial(node, types)
    return None if spatial is None else (0,) * spatial


def _kernel_of_weight(node: ir.Node, types: SymbolicAnalysis) -> tuple[int, ...] | None:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    shape = None if weight is None else types.of(weight).shape
    if shape is None or len(shape) < 3:
        return None
    kernel = tuple(size for size in shape[2:] if isinstance(size, int))
    return kernel if len(kernel) == len(shape) - 2 else None


_CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv")
_POOLS = ("MaxPool", "AveragePool", "LpPool")

IMPLIED: dict[tuple[str, str], Implied] = {
    ("Transpose", "perm"): _reversed_axes,
    **{(name, "strides"): _ones for name in (*_CONVOLUTIONS, *_POOLS)},
    **{(name, "dilations"): _ones for name in (*_CONVOLUTIONS, *_POOLS)},
    **{(name, "pads"): _zero_pads for name in (*_CONVOLUTIONS, *_POOLS)},
    **{(name, "kernel_shape"): _kernel_of_weight for name in _CONVOLUTIONS[:2]},
    ("ConvTranspose", "output_padding"): _zero_output_padding,
}
"""Op and attribute to what a missing one means."""
