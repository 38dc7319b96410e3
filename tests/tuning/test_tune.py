"""Test that `tune` writes the fastest result, or the original if no result is faster."""

import json
from pathlib import Path

import onnx
import pytest
from model_table import parse

import onnxfold
from onnxfold.cli import main
from onnxfold.support.errors import MissingFileError, UsageError
from onnxfold.tools import tuning

DECODER = Path(__file__).parents[2] / "models" / "t5-decoder.onnx"
"""A model whose optimized results are faster on onnxruntime."""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "in.onnx"
    onnx.save(parse("g (float[n, 2] x) => (float[n, 2] y) { t = Neg(x) y = Abs(t) }", 17), path)
    return path


def test_the_faster_result_is_written(tmp_path):
    calls = []
    out = tmp_path / "out.onnx"
    done = onnxfold.tune(
        DECODER, out, seconds=4, threads=1, dims={"batch": 2}, progress=lambda *at: calls.append(at)
    )
    assert done.chosen.startswith("-O") and done.speedup[done.chosen] > 1
    assert done.sizes == {"batch": 2, "dec_seq": 16, "enc_seq": 16} and done.rounds >= 9
    assert next(iter(done.seconds)) == "original" and len(done.seconds) == 6
    assert done.speedup["original"] == 1 and not done.failed
    assert len(onnx.load(out).graph.node) < 200
    assert onnxfold.compare(DECODER, out, inexact=True).passed
    assert {stage for stage, _, _ in calls} == {"optimize", "measure"}
    assert f"written: {done.chosen}, {done.speedup[done.chosen]:.2f}x as fast" in repr(done)
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


def test_the_result_is_not_slower_than_the_original(model, tmp_path):
    done = onnxfold.tune(model, model, seconds=0, threads=1)
    assert done.speedup[done.chosen] >= 1 and done.rounds == 9
    onnx.checker.check_model(onnx.load(model))


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        # times of the original, level 1, level 1 with value_info, and level 2
        ([[2.0], [1.99], [1.99], [1.99]], "-O1"),
        ([[2.0], [2.0], [2.01], [2.01]], "original"),
        ([[2.0], [1.9], [1.9], [1.8]], "-O2"),
        ([[2.0], [1.9, 2.0, 1.6], [1.9], [1.8, 1.9, 1.2]], "-O1"),  # the spread exceeds the gain
        ([[2.0], [2.1], [2.1], [1.9, 1.8, 1.2]], "original"),
        ([[2.0], [1.9], [1.8, 1.9, 1.2], [1.9]], "-O1 --value-info"),  # exact rules only
    ],
)
def test_a_gain_of_inexact_rules_must_exceed_the_spread(tmp_path, monkeypatch, times, chosen):
    model = tmp_path / "in.onnx"
    text = "<float a = {0.3}, float b = {0.7}> { t = Mul(x, a) y = Mul(t, b) }"
    onnx.save(parse(f"g (float[n, 2] x) => (float[n, 2] y) {text}", 17), model)

    def timed_runs(source, opened, *arguments, **options):
        all_times = [*times, *[[3.0]] * (len(opened) - len(times))]
        return [(each * 9)[:9] for each in all_times], {}

    monkeypatch.setattr(tuning, "timed_runs", timed_runs)
    assert onnxfold.tune(model, model, seconds=0).chosen == chosen


def test_a_candidate_that_differs_is_not_chosen(model, tmp_path, monkeypatch):
    optimize_file = tuning.optimize_file

    def differing(source, destination, **options):
        if options["level"] == 1 and "check" in options:
            raise onnxfold.CheckFailedError("the optimized model is different")
        return optimize_file(source, destination, **options)

    monkeypatch.setattr(tuning, "optimize_file", differing)
    done = onnxfold.tune(model, tmp_path / "out.onnx", seconds=0)
    assert done.failed["-O1"] == "the optimized model is different" and "-O2" in done.seconds
    assert not done.chosen.startswith("-O1") and "is different" in repr(done)


def test_command(model, tmp_path, capsys):
    arguments = ["tune", str(model), "-o", str(tmp_path / "out.onnx"), "--seconds", "0"]
    assert main([*arguments, "--threads", "1", "--dim", "n=128"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("candidate") and "-O2 --target onnxruntime" in text
    assert "9 interleaved runs of each, 1 thread, n = 128" in text
    assert main([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["seconds"]) == 6


def test_invalid_arguments_are_rejected(model, tmp_path):
    with pytest.raises(MissingFileError):
        onnxfold.tune(tmp_path / "none.onnx", tmp_path / "out.onnx")
    with pytest.raises(UsageError, match="no input has a dimension 'm'"):
        onnxfold.tune(model, tmp_path / "out.onnx", dims={"m": 3}, seconds=0)
    with pytest.raises(UsageError, match="threads must be a finite number"):
        onnxfold.tune(model, tmp_path / "out.onnx", threads=-1)
    with pytest.raises(UsageError, match="its folder does not exist"):
        onnxfold.tune(model, tmp_path / "missing" / "out.onnx")
    with pytest.raises(UsageError, match="it is a folder"):
        onnxfold.tune(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
