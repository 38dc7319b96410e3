"""Test that facts about exported models hold and that rewritten models give equal results."""

import copy
import random

import numpy as np
import onnx
import pytest
from fact_check import FactCheck
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_state
from reference_session import reference_session
from symbolic_check import floats, rewrite

import onnxfold
from tests.conformance.backend_cases import cases
from tests.model_table import ROOT

MODELS = {
    # onnxruntime's LSTM aborts on an empty batch
    "tests/data/lstm_gru.onnx": [
        {"input_ids": np.random.default_rng(0).integers(1, 500, shape)}
        for shape in ((2, 16), (1, 1), (3, 5), (7, 2), (1, 33), (5, 8))
    ],
    "tests/data/control_flow.onnx": [
        {"x": floats(b, 16), "n": np.array(n)}
        for b, n in ((3, 4), (1, 0), (0, 2), (5, 1), (2, 9), (1, 1), (3, 0), (5, 7), (11, 3))
    ],
    "models/swin.onnx": [{"pixel_values": floats(1, 3, 64, 64)}],
}
AT_MOST = {
    "tests/data/lstm_gru.onnx": 26,
    "tests/data/control_flow.onnx": 16,
    "models/swin.onnx": 266,
}
"""Maximum number of nodes that remain after the passes of `symbolic_check.rewrite`."""


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


def assert_close(want: np.ndarray, got: np.ndarray, rtol: float) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if not rtol:
        assert got.tobytes() == want.tobytes()
    elif got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        scale = max(float(np.abs(want.astype(np.float64)).max(initial=0)), 1.0)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("path", [*MODELS][:2])
def test_optimized_models_agree_at_many_sizes(path, level, tmp_path):
    target = tmp_path / "out.onnx"
    onnxfold.optimize_file(ROOT / path, target, level=level)
    before = reference_session(ROOT / path)
    after = reference_session(target)
    for feeds in MODELS[path]:
        for want, got in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert_close(want, got, 0 if level == 1 else 1e-5)


PARTS = 4
REFUSALS = tuple(
    getattr(onnxruntime_state, name)
    for name in ("Fail", "InvalidGraph", "InvalidArgument", "NotImplemented", "RuntimeException")
)


def half_known(model: onnx.ModelProto, draw: random.Random) -> onnx.ModelProto:
    """Return a copy of a model in which each input dim becomes a symbol with probability 0.5."""
    opened = copy.deepcopy(model)
    opened.ir_version = min(opened.ir_version, 10)
    for k, info in enumerate(opened.graph.input):
        for j, dim in enumerate(info.type.tensor_type.shape.dim):
            if draw.random() < 0.5:
                dim.dim_param = f"d{k}_{j}"
    return opened


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_facts_of_node_cases_hold(part):
    checked = 0
    for case in list(cases().values())[part::PARTS]:
        model = half_known(case.model, random.Random(case.name))
        names = [info.name for info in model.graph.input]
        feeds = dict(zip(names, case.data_sets[0][0], strict=False))
        if not all(isinstance(value, np.ndarray) for value in feeds.values()):
            continue
        try:
            check = FactCheck(model)
        except REFUSALS:
            continue
        checked += check.check(feeds) > 0
    assert checked > 200
