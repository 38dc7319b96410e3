"""Test that other formats and tools accept optimized models."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import onnxfold

pytestmark = pytest.mark.slow
SWIN = Path("models/swin.onnx")


def test_optimized_models_can_be_converted_to_the_ort_format(tmp_path: Path):
    """In the ORT format, the optimized model is smaller and has the same results."""
    sizes = {}
    results = {}
    image = np.random.default_rng(0).random((1, 3, 64, 64), dtype=np.float32)
    onnxfold.optimize_file(SWIN, tmp_path / "optimized.onnx")
    (tmp_path / "original.onnx").write_bytes(SWIN.read_bytes())
    for name in ("original", "optimized"):
        command = "onnxruntime.tools.convert_onnx_models_to_ort"
        subprocess.run(
            [sys.executable, "-m", command, str(tmp_path / f"{name}.onnx")],
            check=True,
            capture_output=True,
        )
        path = tmp_path / f"{name}.ort"
        sizes[name] = path.stat().st_size
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (results[name],) = session.run(None, {"pixel_values": image})
    assert sizes["optimized"] < sizes["original"]
    np.testing.assert_allclose(results["optimized"], results["original"], rtol=1e-4, atol=1e-5)


def test_polygraphy(tmp_path: Path):
    """Polygraphy finds no difference between the original and the optimized model."""
    pytest.importorskip("polygraphy")
    polygraphy = Path(sys.executable).with_name("polygraphy")
    onnxfold.optimize_file(
        SWIN, tmp_path / "static.onnx", input_shapes={"pixel_values": [1, 3, 64, 64]}
    )
    command = [polygraphy, "run"]
    inputs = tmp_path / "inputs.json"
    outputs = tmp_path / "outputs.json"
    subprocess.run(
        [*command, SWIN, "--onnxrt", "--save-inputs", inputs, "--save-outputs", outputs],
        check=True,
        capture_output=True,
    )
    assert json.loads(inputs.read_text())
    done = subprocess.run(
        [
            *command,
            tmp_path / "static.onnx",
            "--onnxrt",
            "--load-inputs",
            inputs,
            "--load-outputs",
            outputs,
            "--atol",
            "1e-5",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
