"""Test exported models with the command line and the API.

The tests compare the bits of results, the sizes of files, and the numbers of nodes.
"""

import functools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_table import ROOT, floats
from processes import python
from reference_session import reference_session

import onnxfold
from onnxfold.tools.bench.measuring import Benched, optimized_ops

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


def test_results_of_the_command_line_are_equal(name, tmp_path):
    source = MODELS[name][0]
    target = tmp_path / "out.onnx"
    report = json.loads(python("-m", "onnxfold", "optimize", source, "-o", target, "--json"))
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
def test_results_of_the_api_are_equal(name, way, tmp_path):
    WAYS[way](MODELS[name][0], tmp_path / "out.onnx")
    assert_the_same_bits(name, tmp_path / "out.onnx")


def test_a_second_run_changes_nothing(name, tmp_path):
    target = tmp_path / "out.onnx"
    onnxfold.optimize_file(MODELS[name][0], target)
    first = target.read_bytes()
    assert onnxfold.optimize_file(target, target).folded == 0
    assert target.read_bytes() == first


FILES = (ROOT / "models" / "swin.onnx", *sorted(DATA.glob("*.onnx")))
LEVELS = ({"level": 1}, {"level": 2}, {"level": 2, "target": "onnxruntime"})


@pytest.fixture(scope="module")
def ops_at_each_level(tmp_path_factory):
    @functools.cache
    def made(model):
        folder = tmp_path_factory.mktemp("levels")
        paths = [model]
        for k, options in enumerate(LEVELS):
            paths.append(folder / f"{k}.onnx")
            onnxfold.optimize_file(model, paths[-1], **options)
        return [optimized_ops(Benched(str(path)), ["CPUExecutionProvider"]) for path in paths]

    return made


@pytest.mark.parametrize("model", FILES, ids=lambda path: path.stem)
def test_higher_levels_do_not_have_more_nodes(model, ops_at_each_level):
    counts = [sum(ops.values()) for ops in ops_at_each_level(model)]
    assert counts == sorted(counts, reverse=True)


def test_onnxruntime_fuses_the_same_ops(ops_at_each_level):
    """At level 2, weights contain the scales of attention, so onnxruntime fuses no scales."""
    original, *levels = ops_at_each_level(FILES[0])
    fused = {op: count for op, count in original.items() if op.startswith("com.microsoft::")}
    exact, inexact, _ = levels
    assert "com.microsoft::Gelu" in fused and fused == {op: exact.get(op) for op in fused}
    del fused["com.microsoft::FusedMatMul"]
    assert fused == {op: inexact.get(op) for op in fused}
    products = ("MatMul", "com.microsoft::FusedMatMul", "Gemm")
    assert sum(inexact.get(op, 0) for op in products) == sum(exact.get(op, 0) for op in products)
