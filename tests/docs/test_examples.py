"""Run the programs of examples/ in a folder with the models."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ("models", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run(folder: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_examples_are_short_and_documented():
    """Each program runs in this file or in test_pages.py. Programs in serve/ have other tests."""
    by_pages = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").rglob("*.md"))
    here = Path(__file__).read_text(encoding="utf-8")
    programs = sorted(set(EXAMPLES.rglob("*.py")) - set((EXAMPLES / "serve").iterdir()))
    assert len(programs) >= 7
    for program in programs:
        text = program.read_text(encoding="utf-8")
        assert text.startswith('"""')
        assert len(text.splitlines()) < 80
        name = program.relative_to(ROOT).as_posix()
        assert f'title="{name}"' in by_pages
        assert f"$ python {name}" in by_pages or f'"{program.name}"' in here
        assert program.name in (EXAMPLES / "README.md").read_text() or program.parent != EXAMPLES


@pytest.mark.slow
def test_the_pytorch_example_computes_the_same_as_pytorch(folder):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    done = run(folder, EXAMPLES / "pytorch_to_onnxruntime.py")
    assert done.returncode == 0, done.stderr
    assert "as PyTorch computes it: True" in done.stdout


@pytest.mark.slow
def test_the_optimum_example_generates_the_same_tokens(folder):
    pytest.importorskip("optimum.onnxruntime")
    done = run(folder, EXAMPLES / "optimum_decoder.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same tokens: True") == 2
    assert "encoder_hidden_states (in use)" in done.stdout


@pytest.mark.slow
def test_the_olive_example_removes_nodes(folder):
    pytest.importorskip("olive")
    quiet = {"OLIVE_DISABLE_TELEMETRY": "1", "PYTHONPATH": "examples"}
    done = run(folder, EXAMPLES / "olive_pass.py", **quiet)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split("nodes:")[1].split())
    assert after < before / 2
    alone = run(folder, "-c", OLIVE, **quiet)
    assert alone.returncode == 0, alone.stderr


OLIVE = """
import onnx, onnxfold
from olive_pass import PASSES, run
onnxfold.save(onnxfold.load("models/swin.onnx"), "swin.onnx", external_data=True)
nodes = {}
for name in ("OnnxPeepholeOptimizer", "Onnxfold"):
    workflow = {"input_model": {"type": "ONNXModel", "model_path": "swin.onnx"},
                "passes": {"fold": {"type": name}}, "output_dir": name}
    run(workflow, package_config=PASSES)
    onnxfold.compare("swin.onnx", f"{name}/model.onnx", seeds=2).assert_equal()
    nodes[name] = len(onnx.load(f"{name}/model.onnx", load_external_data=False).graph.node)
assert nodes["Onnxfold"] < nodes["OnnxPeepholeOptimizer"]
"""


@pytest.mark.slow
def test_the_backend_example_can_be_installed(folder):
    site = folder / "site"
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", site)
    source = folder / "own_backend"
    source.mkdir()
    for name in ("pyproject.toml", "reference_backend.py"):
        (source / name).write_text((EXAMPLES / "own_backend" / name).read_text())
    made = run(folder, *pip, source)
    assert made.returncode == 0, made.stderr
    words = ("--runtime-const", "encoder_*", "--backend", "reference", "-o", "bundle")
    split = ("-m", "onnxfold", "split", "models/t5-decoder.onnx", *words)
    done = run(folder, *split, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert "reference" in (folder / "bundle" / "manifest.json").read_text()
    print(done.stdout)
    compared = run(folder, "-c", SAME, PYTHONPATH=str(site))
    assert compared.stdout == "True True\n", compared.stderr


SAME = """
import numpy as np, onnxfold, onnxruntime as ort
rng = np.random.default_rng(0)
feeds = {"input_ids": np.ones((1, 3), np.int64),
         "encoder_hidden_states": rng.standard_normal((1, 8, 64), dtype=np.float32),
         "encoder_attention_mask": np.ones((1, 8), np.int64)}
session = onnxfold.Session("bundle", backend="reference")
got = session.run(None, feeds)[0]
want = ort.InferenceSession("models/t5-decoder.onnx").run(None, feeds)[0]
print(np.allclose(got, want, atol=1e-4), "reference" in {p.backend for p in session.placements()})
"""
