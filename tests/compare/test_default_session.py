"""Test that checks also run onnxruntime's default session, and that results name their session."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_table import MODELS, parse, with_weights

import onnxfold
from onnxfold.support.errors import CheckFailedError
from onnxfold.tools.comparison import runners

LORA = MODELS / "lora" / "torchscript.onnx"
"""In the default session, the optimized model may return other last bits than the original.

onnxruntime fuses different nodes of the two models."""


@pytest.fixture
def model() -> onnx.ModelProto:
    proto = parse("g (float[4, 8] x) => (float[4, 8] y) { t = Neg (w) y = MatMul (x, t) }")
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    return with_weights(proto, w=weight)


class Broken:
    """A session whose runs fail or return wrong results."""

    def __init__(self, session: ort.InferenceSession, how: str) -> None:
        self._session = session
        self._how = how

    def __getattr__(self, name):
        return getattr(self._session, name)

    def run(self, names, feeds):
        if self._how == "fails":
            raise RuntimeError("a fused kernel fails")
        return [output + np.float32(0.5) for output in self._session.run(names, feeds)]


@pytest.fixture
def break_default_session(monkeypatch):
    """Return a function that breaks the default session of optimized models.

    The optimized models are those without a Neg node.
    """

    def apply(how: str) -> None:
        def opened(source, options, providers):
            session = real(source, options, providers)
            level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            is_default = options.graph_optimization_level != level
            is_optimized = "Neg" not in {node.op_type for node in onnx.load(source).graph.node}
            return Broken(session, how) if is_default and is_optimized else session

        real = runners.open_session
        monkeypatch.setattr(runners, "open_session", opened)

    return apply


def test_check_runs_both_sessions_and_names_them(tmp_path):
    report = onnxfold.optimize_file(LORA, tmp_path / "out.onnx", check=2, fsync=False)
    check = report.check
    default = report.check.default_session
    assert (check.session, default.session) == ("node by node", "default session")
    assert check.equal and default.passed and not report.warnings
    assert default.runs == check.runs and default.sizes == check.sizes
    lines = [line for line in report.to_text().splitlines() if line.startswith("check: ")]
    assert lines[0].startswith("check: equal bit for bit on 2 runs (onnxruntime, node by node)")
    assert lines[1].startswith("check: ") and "2 runs (onnxruntime, default session)" in lines[1]
    if not default.equal:
        assert "the original differs by" in lines[1]
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))["check"]
    assert document["session"] == "node by node" and document["own_error"] is None
    assert document["default_session"]["session"] == "default session"
    assert document["default_session"]["own_error"] == default.own_error


def test_only_checks_run_the_default_session(model, tmp_path):
    onnx.save(model, tmp_path / "in.onnx")
    result = onnxfold.compare(model, model)
    assert result.session == "node by node" and result.default_session is None
    assert "equal bit for bit on 1 run (onnxruntime, node by node)" in result.to_text()
    report = onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", level=2)
    assert report.check is None or report.check.default_session is None


def test_difference_in_the_default_session_is_a_warning(model, tmp_path, break_default_session):
    break_default_session("differs")
    _, report = onnxfold.optimize(model, check=1, return_report=True)
    assert report.check.equal and not report.check.default_session.passed
    (warning,) = report.warnings
    assert "differs by 0.5 from the original in onnxruntime's default session" in warning
    assert "different on 1 run (onnxruntime, default session), max abs error 0.5" in str(report)


def test_tolerances_of_the_user_apply_to_both_sessions(model, break_default_session):
    break_default_session("differs")
    _, report = onnxfold.optimize(model, atol=1.0, return_report=True)
    assert report.check.default_session.passed and not report.warnings


def test_result_that_fails_in_the_default_session_is_refused(
    model, tmp_path, break_default_session
):
    break_default_session("fails")
    onnx.save(model, tmp_path / "in.onnx")
    reason = "does not run in onnxruntime's default session, .* a fused kernel fails; nothing was"
    with pytest.raises(CheckFailedError, match=reason):
        onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", check=1)
    assert not (tmp_path / "out.onnx").exists()


def test_original_that_fails_in_the_default_session_is_a_warning(model, monkeypatch):
    def opened(source, options, providers):
        session = real(source, options, providers)
        level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        is_default = options.graph_optimization_level != level
        return Broken(session, "fails") if is_default else session

    real = runners.open_session
    monkeypatch.setattr(runners, "open_session", opened)
    _, report = onnxfold.optimize(model, check=1, return_report=True)
    assert report.check.equal and report.check.default_session is None
    (note,) = report.check.notes
    assert (
        note == "the original does not run in onnxruntime's default session: a fused kernel fails"
    )
    assert report.warnings == [note]
