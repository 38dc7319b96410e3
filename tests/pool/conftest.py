"""What the tests of postponed work share."""

from __future__ import annotations

import math

import pytest

from onnxfold.kernels.streams.regions import lengths
from onnxfold.kernels.streams.sources import ElementWise


@pytest.fixture
def work(monkeypatch) -> dict[str, int]:
    """Counts element-wise operations: steps times elements."""
    counted = {"operations": 0}
    read = ElementWise.read

    def counting_read(self, region):
        count = math.prod(lengths(region))
        if count * self.dtype.numpy().itemsize <= self.piece_bytes:  # a larger one is cut first
            counted["operations"] += len(self._steps) * count
        return read(self, region)

    monkeypatch.setattr(ElementWise, "read", counting_read)
    return counted
