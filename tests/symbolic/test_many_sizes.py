"""Whole models, optimized once: the same bits at sizes of the dynamic dims that nobody tried.

The models of this repository always run. A folder of more models is named by the environment
variable ``ONNXFOLD_MODELS``: each in a folder of its own with ``model.onnx`` and ``meta.json``
(``dyn``: input to axis to the name of a dim), and beside them a ``feeds.py`` that makes inputs.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from reference_session import reference_session

import onnxfold

ROOT = Path(__file__).parents[2]
MODELS = Path(os.environ.get("ONNXFOLD_MODELS", os.devnull))
FOLDERS = sorted(path.parent for path in MODELS.glob("*/meta.json"))

Sizes = Mapping[str, int]


def results(model: ort.InferenceSession, feeds: Mapping[str, Any]) -> list[np.ndarray] | None:
    """None if the model does not take the feeds."""
    try:
        return model.run(None, dict(feeds))
    except Exception:  # onnxruntime has one class for each of its codes
        return None


def is_half(path: Path) -> bool:
    """True for a model that onnxruntime computes with more digits than it has."""
    graph = onnx.load(path, load_external_data=False).graph
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    return any(t.data_type in halves for t in graph.initializer) or any(
        i.type.tensor_type.elem_type in halves for i in graph.input
    )


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.onnx*"))


def assert_close(want: np.ndarray, got: np.ndarray, rtol: float) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if not rtol:
        assert got.tobytes() == want.tobytes()
    elif got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        scale = max(float(np.abs(want.astype(np.float64)).max(initial=0)), 1.0)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale)


# -------------------------------------------------------------------- the models that are here


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


# -------------------------------------------------------------------- a folder of models


def dims_of(folder: Path) -> list[str]:
    """Names of the dynamic dims; a ``total`` is past and sequence together."""
    dynamic = json.loads((folder / "meta.json").read_text()).get("dyn") or {}
    if isinstance(dynamic, str):
        dynamic = ast.literal_eval(dynamic)
    names = {name for axes in dynamic.values() for name in axes.values()}
    return sorted(names - {"total"})


def combinations(names: list[str]) -> Iterator[Sizes]:
    """Sizes to try: all 1, primes, one dim large, an empty batch."""
    for first in (1, 3, 5, 2, 7):
        sizes = {name: first + 2 * k * (first > 1) for k, name in enumerate(names)}
        for k, name in enumerate(("height", "width")):  # images are halved a few times
            if name in sizes:
                sizes[name] = 32 if (first + k) % 3 else 64
        yield sizes
        if "batch" in sizes and first in (1, 5):
            yield {**sizes, "batch": 0}
    for name in names if "height" not in names else ():
        yield {**sizes, "batch": 1, name: 17}


_PROBE = """
import sys, numpy, onnxruntime
onnxruntime.set_default_logger_severity(4)
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(sys.argv[1], options)
session.run(None, dict(numpy.load(sys.argv[2])))
"""


def is_taken(model: Path, feeds: Mapping[str, Any], folder: Path) -> bool:
    """Asked in a process of its own: some kernels of onnxruntime abort on empty tensors."""
    np.savez(folder / "feeds.npz", **feeds)
    command = [sys.executable, "-c", _PROBE, str(model), str(folder / "feeds.npz")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def feeds_of(model: Path, sizes: Sizes, seed: int) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("feeds", MODELS / "feeds.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.make_feeds(str(model), seed, dict(sizes)))


@pytest.mark.slow
@pytest.mark.skipif(not FOLDERS, reason="no folder of models is given")
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_more_models(folder, level, tmp_path):
    source, target = folder / "model.onnx", tmp_path / "out.onnx"
    names = dims_of(folder)
    onnxfold.optimize_file(source, target, level=level)
    assert bytes_in(tmp_path) <= 1.01 * bytes_in(folder)
    rtol = 1e-2 if is_half(source) else 0 if level == 1 else 1e-5
    before, after = reference_session(source), reference_session(target)
    tried = []
    for seed, sizes in enumerate(combinations(names) if names else [{}]):
        feeds = feeds_of(source, sizes, seed)
        if 0 in sizes.values() and not is_taken(source, feeds, tmp_path):
            continue
        want = results(before, feeds)
        if want is None:
            continue
        got = results(after, feeds)
        assert got is not None, sizes
        for a, b in zip(want, got, strict=True):
            assert_close(a, b, rtol)
        tried.append(sizes)
    print(folder.name, level, len(tried), [s["batch"] for s in tried if "batch" in s])
    if names:
        assert len(tried) >= 5 and any(1 in sizes.values() for sizes in tried)
