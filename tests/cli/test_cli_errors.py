import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
from model_table import saved

import onnxfold
from onnxfold.api.options import byte_size
from onnxfold.support.errors import UsageError


def one_line(result, word):
    """Assert that a command failed and printed only one line, an error that contains the word."""
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("onnxfold: error: ")
    assert result.err.count("\n") == 1
    assert word in result.err


def test_no_command_shows_the_help(run):
    result = run()
    assert result.code == 2
    assert "Usage:" in result.err


def test_version(run):
    assert run("--version").out.startswith("onnxfold ")


def raising(error):
    return mock.Mock(side_effect=error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ZeroDivisionError("oh"), "ZeroDivisionError: oh; this is a bug, run with --verbose"),
        (OSError(28, "No space left", "out.onnx"), "out.onnx: No space left"),
        (MemoryError(), "out of memory"),
    ],
)
def test_errors_are_printed_in_one_line(run, tiny, monkeypatch, error, text):
    monkeypatch.setattr("onnxfold.tools.comparison.compare", raising(error))
    one_line(run("compare", tiny, tiny), text)


def test_interrupt_has_exit_code_130(run, tiny, monkeypatch):
    monkeypatch.setattr("onnxfold.tools.comparison.compare", raising(KeyboardInterrupt()))
    result = run("compare", tiny, tiny)
    assert result.code == 130
    assert "Traceback" not in result.err


def test_verbose_shows_the_traceback(run, tiny, monkeypatch, caplog):
    monkeypatch.setattr("onnxfold.tools.comparison.compare", raising(ZeroDivisionError("oh")))
    assert run("compare", tiny, tiny, "--verbose").code == 2
    assert any(record.exc_info for record in caplog.records)


def test_check_without_a_runnable_model_fails(run, tmp_path):
    """A check uses only onnxruntime, because the results of another evaluator may differ."""
    path = saved("g (float[2] x) => (float[2] y) { y = Nope(x) }", tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    result = run("optimize", path, "-o", out, "--check", "1")
    one_line(result, "m.onnx: the model cannot be run")
    assert not out.exists()
    assert run("optimize", path, "-o", out).code == 0


def test_out_of_memory_names_the_file(run, tiny, monkeypatch):
    monkeypatch.setattr("onnxfold.api.optimize.run_bounded", raising(MemoryError()))
    one_line(run("optimize", tiny, "-o", tiny), "tiny.onnx: there is not enough memory")


def test_closed_output_pipe_is_not_an_error(tiny):
    """`onnxfold inspect m | head -0` prints no error."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "onnxfold", "inspect", str(tiny)]
    result = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (result.returncode, result.stderr) == (0, "")


def test_ascii_terminal_prints_ascii(tiny):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "onnxfold", "inspect", str(tiny)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Add" in result.stdout and "----" in result.stdout and "?" not in result.stdout


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("512MB", 512_000_000), ("512mib", 512 << 20), ("1.5 GB", 1_500_000_000)],
)
def test_byte_sizes_are_parsed(text, size):
    assert byte_size(text) == size


QUANTIZED = """
g (float[n, 64] x) => (float[n, 64] y) <float scale = {0.5}, int8 zero = {1}> {
    q = QuantizeLinear(w, scale, zero)
    d = DequantizeLinear(q, scale, zero)
    y = MatMul(x, d)
}
"""
NOWHERE_VALID = """
g (float[a] x) => (float[7, 7] y, float[5, 5] z) <int64[2] s = {7, 7}, int64[2] t = {5, 5}> {
    y = Reshape(x, s)
    z = Reshape(x, t)
}
"""


def test_reasons_name_options_of_the_interface(run, tmp_path):
    weight = np.ones((64, 64), np.float32)
    quantized = saved(QUANTIZED, tmp_path / "in.onnx", w=weight)
    out = tmp_path / "out.onnx"
    assert "; --fold-quantized folds it" in run("optimize", quantized, "-o", out).out
    assert "; --fold-quantized folds it" in run("explain", quantized).out
    reasons = [decision.reason for decision in onnxfold.optimize_file(quantized, out).kept]
    assert reasons == ["the weight stays quantized; fold_quantized folds it"]
    text = run("optimize", quantized, "-o", out, "--keep", "Mattmul").out
    assert "warning: --keep 'Mattmul' matches no op type" in text
    assert onnxfold.optimize_file(quantized, out, keep=["Mattmul"]).warnings[0].startswith("keep ")


def test_failing_check_names_the_option_of_the_command(run, tmp_path):
    path = saved(NOWHERE_VALID, tmp_path / "model.onnx")
    hint = "give inputs with --feeds, or sizes of dimensions with"
    assert f"{hint} --check-dim" in run("optimize", path, "-o", path, "--check", 1).err
    assert f"{hint} --dim" in run("compare", path, path).err
    journal = tmp_path / "journal"
    code = run("batch", path, "-o", tmp_path / "b", "--check", 1, "--journal", journal).code
    assert code != 0 and f"{hint} --check-dim" in journal.read_text()
    with pytest.raises(UsageError, match="with feeds, or sizes of dimensions with check_dims"):
        onnxfold.optimize(path, check=1)
    with pytest.raises(UsageError, match="with feeds, or sizes of dimensions with dims"):
        onnxfold.compare(path, path)
