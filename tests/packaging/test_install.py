import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXCLUDED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
PROBE = """
import importlib.metadata, importlib.resources, onnxfold, onnxfold.cli, onnxfold.rules
assert onnxfold.cli.main(["--version"]) == 0
page = importlib.resources.files("onnxfold") / "tools" / "report" / "page" / "assets"
assert all((page / name).is_file() for name in ("page.html", "vendor/dagre.min.js"))
print(onnxfold.rules.__file__)
print([str(f) for f in importlib.metadata.files("onnxfold") if f.name == "LICENSE"])
"""

MOST_BYTES = 1 << 20
"""Maximum size of the wheel in bytes.

The wheel has 750 kB. The largest files in the wheel are scripts of the HTML page."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Return a copy of the project, so that builds do not write to the checkout."""
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "project", ignore=EXCLUDED)


@pytest.fixture(scope="module")
def built(source, tmp_path_factory) -> Path:
    """Build the sdist, and the wheel from the sdist. Return the folder that contains both."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, source)
    return folder


def run(*command: object, **how: object) -> str:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **how)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr
    return result.stdout


def new_environment(folder: Path) -> Path:
    """Create a virtual environment and return the folder of its programs."""
    run(sys.executable, "-m", "venv", folder / "venv")
    return folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")


def probe(folder: Path, *packages: object) -> str:
    """Install packages and click without other dependencies. Return the output of `PROBE`."""
    python = new_environment(folder) / "python"
    run(python, "-m", "pip", "install", "--quiet", "click")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", *packages)
    return run(python, "-I", "-c", PROBE)


def test_wheel(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    shown = probe(tmp_path, wheel)
    assert "site-packages" in shown
    assert "LICENSE" in shown


def test_wheel_contains_only_the_package(source, built):
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    packaged = {path for path in (source / "onnxfold").rglob("*") if path.is_file()}
    expected = {path.relative_to(source).as_posix() for path in packaged}
    rules = source / "rules"
    expected |= {f"onnxfold/rules/{path.name}" for path in rules.iterdir() if path.is_file()}
    information = metadata.removesuffix("METADATA")
    assert {name for name in names if not name.startswith(information)} == expected

    described = Parser().parsestr(text)
    assert described["Name"] == "onnxfold"
    assert described["License-Expression"] == "Apache-2.0"
    assert described["Description-Content-Type"] == "text/markdown"
    assert (
        described.get_payload().strip()
        == (source / "README.md").read_text(encoding="utf-8").strip()
    )
    assert f"{information}licenses/LICENSE" in names


def test_wheel_runs_in_an_empty_environment(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    programs = new_environment(tmp_path)
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel)
    shutil.copy(ROOT / "models" / "swin.onnx", tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"cwd": tmp_path, "env": environment}
    command = ("optimize", "swin.onnx", "-o", "small.onnx", "--check", "1")
    assert "equal bit for bit" in run(programs / "onnxfold", *command, **options)
    assert f"installation        {tmp_path}" in run(programs / "onnxfold", "doctor", **options)


def test_sdist(built, tmp_path):
    (sdist,) = built.glob("*.tar.gz")
    assert "site-packages" in probe(tmp_path, sdist)


def test_editable(source, tmp_path):
    assert str(source / "rules") in probe(tmp_path, "--editable", source)


def test_suite_with_the_oldest_dependencies(tmp_path: Path) -> None:
    """The tests pass with the oldest Python and dependencies that pyproject.toml allows."""
    uv = pytest.importorskip("uv").find_uv_bin()
    oldest = importlib.metadata.metadata("onnxfold")["Requires-Python"].removeprefix(">=")
    find = [uv, "python", "find", "--no-python-downloads", oldest]
    completed = subprocess.run(find, capture_output=True, text=True)
    if completed.returncode:
        pytest.skip(completed.stderr.strip())
    bin_folder = tmp_path / "venv" / "bin"
    run(uv, "venv", "--seed", "--python", completed.stdout.strip(), tmp_path / "venv")
    install = (uv, "pip", "install", "--python", bin_folder / "python")
    run(*install, "--resolution", "lowest-direct", "--editable", f"{ROOT}[dev]")
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    suite = (bin_folder / "python", "-m", "pytest", "-n", "2")
    run(*suite, cwd=ROOT, env={**os.environ, "PATH": path})
