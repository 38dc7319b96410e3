"""Whole models, optimized once: the same bits at sizes of the dynamic dims that nobody tried."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from reference_session import reference_session

import onnxfold

ROOT = Path(__file__).parents[2]


def results(model: ort.InferenceSession, feeds: Mapping[str, Any]) -> list[np.ndarray] | None:
    """None if the model does not take the feeds."""
    try:
        return model.run(None, dict(feeds))
    except Exception:  # onnxruntime has one class for each of its codes
        return None


def assert_close(want: np.ndarray, got: np.ndarray, rtol: float) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if not rtol:
        assert got.tobytes() == want.tobytes()
    elif got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        scale = max(float(np.abs(want.astype(np.float64)).max(initial=0)), 1.0)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale)


def _here() -> dict[str, tuple[Path, list[dict[str, np.ndarray]]]]:
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    ids = [(1, 1), (3, 5), (7, 2), (1, 33), (5, 8)]  # onnxruntime's LSTM aborts on an empty batch
    loops = [(1, 1), (3, 0), (0, 2), (5, 7), (2, 9), (11, 3)]
    return {
        "lstm_gru": (
            ROOT / "tests/data/lstm_gru.onnx",
            [{"input_ids": rng.integers(1, 500, shape)} for shape in ids],
        ),
        "control_flow": (
            ROOT / "tests/data/control_flow.onnx",
            [{"x": floats(batch, 16), "n": np.array(n)} for batch, n in loops],
        ),
    }


HERE = _here()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("name", HERE)
def test_sizes_that_no_example_used(name, level, tmp_path):
    source, several = HERE[name]
    target = tmp_path / "out.onnx"
    onnxfold.optimize_file(source, target, level=level)
    before, after = reference_session(source), reference_session(target)
    accepted = 0
    for feeds in several:
        want = results(before, feeds)
        if want is None:
            continue
        accepted += 1
        got = results(after, feeds)
        assert got is not None, feeds
        for a, b in zip(want, got, strict=True):
            assert_close(a, b, 0 if level == 1 else 1e-5)
    assert accepted >= 5
