"""Some random graphs, the same in every run; ``python -m tests.random_graphs`` makes more."""

from __future__ import annotations

import pytest

from .check import DEFAULT, FACTS
from .run import run


@pytest.mark.parametrize(
    ("seeds", "variants", "least"),  # onnxruntime 1.23 crashes on some
    [
        (range(80), DEFAULT, 48),
        (range(80, 160), DEFAULT, 48),
        (range(500, 530), ("O2", "onnxruntime"), 24),
        (range(900_000, 900_020), ("split", "split-late"), 10),
        (range(3000, 3120), (FACTS,), 80),
    ],
    ids=["exact", "exact again", "for a target", "split", "what is known of values"],
)
def test_random_graphs(seeds, variants, least):
    found = run(seeds, variants, seconds_to_shrink=10)
    assert found.checked > least, found.discarded
    assert not found.classes, "\n".join(f"{key}\n{found.texts[key]}" for key in found.classes)
