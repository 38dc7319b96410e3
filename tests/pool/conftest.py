"""What the tests of postponed work share."""

from __future__ import annotations

import math

import pytest

from onnxfold.kernels.fused.program import Program


@pytest.fixture
def work(monkeypatch) -> dict[str, int]:
    """Counts element-wise operations: steps times elements."""
    counted = {"operations": 0}
    evaluate = Program._evaluate

    def counting_evaluate(self, piece, *known):
        counted["operations"] += len(self._steps) * math.prod(s.stop - s.start for s in piece)
        return evaluate(self, piece, *known)

    monkeypatch.setattr(Program, "_evaluate", counting_evaluate)
    return counted
