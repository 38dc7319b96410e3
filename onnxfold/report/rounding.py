"""What wide precision makes of a model: by how much what is stored differs from exact precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.comparison.metrics import Array, Tolerance, distance
from onnxfold.kernels.wide import WIDE
from onnxfold.pool import BufferTensor
from onnxfold.report.inventory import stored_tensors


@dataclass(frozen=True)
class Rounding:
    """A stored tensor in wide and in exact precision.

    Attributes:
        tensor: Its name.
        dtype: Its element type.
        elements: How many there are.
        differing: How many of them differ.
        max_abs_error: The largest difference of two finite elements.
        max_ulp: The same in units in the last place, for floats.
    """

    tensor: str
    dtype: str
    elements: int
    differing: int
    max_abs_error: float
    max_ulp: int | None


def measure_rounding(wide: ir.Model, exact: ir.Model) -> list[Rounding]:
    """Compare the tensors that folding has made, piece by piece; the farthest apart come first.

    Args:
        wide: A model that was folded in wide precision.
        exact: The same in exact precision. A tensor that it does not have is left out.
    """
    others = {value.name: tensor for value, tensor in stored_tensors(exact)}
    found = []
    for value, tensor in stored_tensors(wide):
        other = others.get(value.name)
        if not (isinstance(tensor, BufferTensor) and isinstance(other, BufferTensor)):
            continue
        if tensor.dtype not in WIDE or (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            continue
        dtype = tensor.dtype.numpy()
        apart = [
            distance(a.view(dtype), b.view(dtype), Tolerance())
            for a, b in _together(other.pieces(), tensor.pieces())
        ]
        ulps = [each.max_ulp for each in apart if each.max_ulp is not None]
        differing = sum(each.differing for each in apart)
        error = max((each.max_abs_error for each in apart), default=0.0)
        sums = (differing, error, max(ulps, default=None))
        found.append(Rounding(value.name or "", dtype.name, tensor.size, *sums))
    return sorted(found, key=lambda r: (-(r.max_ulp or 0), -r.max_abs_error, -r.differing))


def _together(a: Iterator[Array], b: Iterator[Array]) -> Iterator[tuple[Array, Array]]:
    """Pieces of the same bytes of both, wherever each is cut."""
    x = y = np.empty(0, np.uint8)
    while True:
        x = x if x.size else next(a, x)
        y = y if y.size else next(b, y)
        count = min(x.size, y.size)
        if not count:
            return
        yield x[:count], y[:count]
        x, y = x[count:], y[count:]
