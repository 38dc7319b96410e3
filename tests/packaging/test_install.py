import importlib.metadata
import os
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


def run(*command: object, **how: object) -> str:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **how)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr
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


def test_the_suite_with_the_oldest_dependencies(tmp_path: Path) -> None:
    """The oldest Python and the oldest dependencies that pyproject.toml admits are enough."""
    uv = pytest.importorskip("uv").find_uv_bin()
    oldest = importlib.metadata.metadata("onnxfold")["Requires-Python"].removeprefix(">=")
    find = [uv, "python", "find", "--no-python-downloads", oldest]
    found = subprocess.run(find, capture_output=True, text=True)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    bin_folder = tmp_path / "venv" / "bin"
    run(uv, "venv", "--seed", "--python", found.stdout.strip(), tmp_path / "venv")
    install = (uv, "pip", "install", "--python", bin_folder / "python")
    run(*install, "--resolution", "lowest-direct", "--editable", f"{ROOT}[dev]")
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    suite = (bin_folder / "python", "-m", "pytest", "-n", "2")
    run(*suite, cwd=ROOT, env={**os.environ, "PATH": path})
