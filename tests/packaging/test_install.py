"""The wheel, the sdist and an editable install, each in a fresh virtual environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
PROBE = """
import importlib.metadata, importlib.resources, onnxfold, onnxfold.cli, onnxfold.rules
assert onnxfold.cli.main(["--version"]) == 0
page = importlib.resources.files("onnxfold") / "report" / "page" / "assets"
assert all((page / name).is_file() for name in ("page.html", "vendor/dagre.min.js"))
print(onnxfold.rules.__file__)
print([str(f) for f in importlib.metadata.files("onnxfold") if f.name == "LICENSE"])
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the project, so that nothing is built in the checkout."""
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "project", ignore=LEFT_OUT)


@pytest.fixture(scope="module")
def built(source, tmp_path_factory) -> Path:
    """A folder with the wheel (built from the sdist) and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, source)
    return folder


def run(*command: object) -> str:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def probe(folder: Path, *what: object) -> str:
    """Installs into a new virtual environment, without dependencies but click, and imports."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", "click")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", *what)
    return run(python, "-I", "-c", PROBE)


def test_wheel(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    shown = probe(tmp_path, wheel)
    assert "site-packages" in shown
    assert "LICENSE" in shown


def test_sdist(built, tmp_path):
    (sdist,) = built.glob("*.tar.gz")
    assert "site-packages" in probe(tmp_path, sdist)


def test_editable(source, tmp_path):
    assert str(source / "rules") in probe(tmp_path, "--editable", source)
