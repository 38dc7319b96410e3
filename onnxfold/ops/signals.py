"""Windows and Fourier transforms of signals."""

from __future__ import annotations

from onnxfold.ops.definition import Op, op
from onnxfold.ops.traits import Trait


@op("BlackmanWindow", "HammingWindow", "HannWindow")
class SignalWindow(Op):
    """Return a window of a given size."""

    scalar_constants = (0,)


@op("DFT", traits=Trait.UNBOUNDED)
class DFT(Op):
    """Return a discrete Fourier transform."""

    scalar_constants = (1, 2)
