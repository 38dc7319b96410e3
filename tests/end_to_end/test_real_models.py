"""Real exported models through the command line and the API: the same bits, no larger file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_table import floats
from reference_session import reference_session

import onnxfold

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"


def lstm_gru(batch: int, seq: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(1, 500, (batch, seq))
    return {"input_ids": ids}


def control_flow(batch: int, n: int) -> dict[str, np.ndarray]:
    return {"x": floats(batch, 16), "n": np.array(n, np.int64)}


def swin(batch: int, seed: int) -> dict[str, np.ndarray]:
    return {"pixel_values": floats(batch, 3, 64, 64, seed=seed)}


MODELS = {
    "lstm_gru": (DATA / "lstm_gru.onnx", lstm_gru, [(2, 16), (3, 5)]),
    "control_flow": (DATA / "control_flow.onnx", control_flow, [(3, 4), (1, 0)]),
    "swin": (ROOT / "models" / "swin.onnx", swin, [(1, 0), (1, 1)]),
}


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return reference_session(path).run(None, feeds)


def assert_the_same_bits(name: str, target: Path) -> None:
    source, make_feeds, sizes = MODELS[name]
    for size in sizes:
        feeds = make_feeds(*size)
        for want, got in zip(run(source, feeds), run(target, feeds), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            assert got.tobytes() == want.tobytes(), f"{name} at {size}"


def interface(path: Path) -> list[str]:
    graph = onnx.load(path).graph
    return [str(value) for value in (*graph.input, *graph.output)]


@pytest.fixture(params=MODELS)
def name(request) -> str:
    return request.param


def test_by_the_command_line(name, tmp_path):
    source = MODELS[name][0]
    target = tmp_path / "out.onnx"
    command = [sys.executable, "-m", "onnxfold", "optimize", source, "-o", target, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["folded"] > 0
    assert target.stat().st_size <= source.stat().st_size + (1 << 16)
    assert sum(report["nodes_after"].values()) < sum(report["nodes_before"].values())
    assert "Constant" not in report["nodes_after"] or name == "control_flow"
    assert interface(target) == interface(source)
    onnx.checker.check_model(target, full_check=True)
    assert_the_same_bits(name, target)


WAYS = {
    "api": lambda source, target: onnxfold.save(onnxfold.optimize(source), target),
    "proto": lambda source, target: onnx.save(onnxfold.optimize(onnx.load(source)), target),
    "all": lambda *paths: onnxfold.optimize_file(*paths, fold_all=True),
    "external data": lambda *paths: onnxfold.optimize_file(*paths, external_data=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_other_ways(name, way, tmp_path):
    WAYS[way](MODELS[name][0], tmp_path / "out.onnx")
    assert_the_same_bits(name, tmp_path / "out.onnx")


def test_a_second_run_changes_nothing(name, tmp_path):
    target = tmp_path / "out.onnx"
    onnxfold.optimize_file(MODELS[name][0], target)
    first = target.read_bytes()
    report = onnxfold.optimize_file(target, target)
    assert report.folded == 0
    assert target.read_bytes() == first
