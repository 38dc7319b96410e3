"""Test that commands use the rules, passes and targets of an installed package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from model_table import saved

MODULE = '''
import onnx_ir as ir

from onnxfold import Target
from onnxfold.rewrite import op, rule


@rule
def hardmax_twice(x):
    """Hardmax is idempotent."""
    return op.Hardmax(op.Hardmax(x)) >> op.Hardmax(x)


RUNTIME = Target("stranger-runtime")


class Rename(ir.passes.InPlacePass):
    """Name the graph."""

    def call(self, model):
        model.graph.name = "renamed"
        return ir.passes.PassResult(model, modified=True)


class Configured(ir.passes.InPlacePass):
    """Append the level of the options to the name."""

    def __init__(self, *, options):
        super().__init__()
        self.options = options

    def call(self, model):
        model.graph.name += f" at level {self.options.level}"
        return ir.passes.PassResult(model, modified=True)
'''
ENTRY_POINTS = """
[onnxfold.rules]
stranger = onnxfold_stranger

[onnxfold.passes]
rename = onnxfold_stranger:Rename
configured = onnxfold_stranger:Configured

[onnxfold.targets]
stranger-runtime = onnxfold_stranger:RUNTIME
"""
MODEL = "g (float[2] x) => (float[2] y) { h = Hardmax (x) y = Hardmax (h) }"


def install(folder: Path, module: str = MODULE) -> Path:
    """Install a package with one module and metadata like pip, and return the folder to import."""
    site = folder / "site"
    info = site / "onnxfold_stranger-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "onnxfold_stranger.py").write_text(module)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxfold-stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


def onnxfold(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run ``onnxfold`` in a process that can import the modules in ``site``."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "onnxfold", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return install(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def model(tmp_path) -> Path:
    return saved(MODEL, tmp_path / "m.onnx")


def test_rules_and_passes_are_listed(site):
    listed = onnxfold(site, "rules")
    assert listed.returncode == 0, listed.stderr
    assert "hardmax_twice  Hardmax is idempotent." in listed.stdout
    passes = onnxfold(site, "passes").stdout
    assert "rename" in passes and "onnxfold_stranger:Rename" in passes


def test_rule_is_applied_and_can_be_disabled(site, model, tmp_path):
    out = tmp_path / "out.onnx"
    done = onnxfold(site, "optimize", model, "-o", out, "--check", 1, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rewrites"] == {"hardmax_twice": 1}
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Hardmax"]
    again = onnxfold(site, "optimize", model, "-o", out, "--disable", "onnxfold_stranger")
    assert again.returncode == 0, again.stderr
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Hardmax", "Hardmax"]


def test_passes_run_by_name(site, model, tmp_path):
    out = tmp_path / "out.onnx"
    done = onnxfold(site, "optimize", model, "-o", out, "--passes", "rename,configured", "-O2")
    assert done.returncode == 0, done.stderr
    assert onnx.load(out).graph.name == "renamed at level 2"


def test_target_is_selected_by_name(site, model, tmp_path):
    out = tmp_path / "out.onnx"
    done = onnxfold(site, "optimize", model, "-o", out, "--target", "stranger-runtime")
    assert done.returncode == 0, done.stderr
    done = onnxfold(site, "optimize", model, "-o", out, "--target", "strange-runtime")
    assert done.returncode == 2
    assert "stranger-runtime" in done.stderr


def test_error_names_the_package_that_cannot_be_loaded(model, tmp_path):
    site = install(tmp_path, "raise RuntimeError('out of order')")
    done = onnxfold(site, "optimize", model, "-o", tmp_path / "out.onnx")
    assert done.returncode == 2
    assert "stranger" in done.stderr and "out of order" in done.stderr
    assert not (tmp_path / "out.onnx").exists()
    done = onnxfold(site, "optimize", model, "-o", tmp_path / "out.onnx", "--passes", "rename")
    assert done.returncode == 2
    assert "rename" in done.stderr and "out of order" in done.stderr
