"""Some random graphs, the same in every run; ``python -m tests.random_graphs`` makes more."""

from __future__ import annotations

import pytest

from .check import DEFAULT
from .run import run


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_random_graphs(first):
    found = run(range(first, first + 40), DEFAULT, seconds_to_shrink=10)
    assert found.checked > 24, found.discarded  # onnxruntime 1.23 crashes on some
    assert not found.classes, "\n".join(f"{key}\n{found.texts[key]}" for key in found.classes)


def test_random_graphs_for_a_target():
    found = run(range(500, 530), ("O2", "onnxruntime"), seconds_to_shrink=10)
    assert found.checked > 24, found.discarded
    assert not found.classes, "\n".join(f"{key}\n{found.texts[key]}" for key in found.classes)
