"""Exported models: all facts hold, and the rewritten model gives the same bits at many sizes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from fact_check import FactCheck
from symbolic_check import floats, rewrite

ROOT = Path(__file__).parents[2]


def ids(batch: int, seq: int) -> dict[str, np.ndarray]:
    return {"input_ids": np.random.default_rng(0).integers(1, 500, (batch, seq))}


MODELS = {
    "tests/data/lstm_gru.onnx": [ids(b, s) for b, s in ((2, 16), (1, 1), (3, 5), (7, 2), (1, 33))],
    "tests/data/control_flow.onnx": [
        {"x": floats(b, 16), "n": np.array(n)} for b, n in ((3, 4), (1, 0), (0, 2), (5, 1), (2, 9))
    ],
    "models/swin.onnx": [{"pixel_values": floats(1, 3, 64, 64)}],
}
AT_MOST = {
    "tests/data/lstm_gru.onnx": 26,
    "tests/data/control_flow.onnx": 16,
    "models/swin.onnx": 266,
}
"""Nodes that these passes alone leave."""


@pytest.mark.parametrize("path", MODELS)
def test_all_facts_hold(path):
    check = FactCheck(onnx.load(ROOT / path))
    for feeds in MODELS[path]:
        assert check.check(feeds) > 10


@pytest.mark.parametrize("path", MODELS)
def test_rewritten_models_give_the_same_bits(path):
    model = rewrite(onnx.load(ROOT / path))
    assert sum(model.ops.values()) <= AT_MOST[path]
    model.check(*MODELS[path])
