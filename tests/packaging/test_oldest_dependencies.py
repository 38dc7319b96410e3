"""What pyproject.toml admits at the least is enough."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_suite_with_the_oldest_versions_of_all_dependencies(tmp_path: Path):
    """Of what onnxfold needs; the tests' own tools are as new as can be."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = [_oldest(Requirement(text)) for text in project["dependencies"]]
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(oldest))
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", constraints]
    subprocess.run([*install, "--editable", f"{ROOT}[dev]"], check=True)
    listed = subprocess.run(
        [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    ).stdout.lower()
    for version in oldest:
        assert version.lower().replace("_", "-") in listed.replace("_", "-")
    done = subprocess.run(
        [python, "-m", "pytest", "-n", "2", "-x", "--ignore=tests/packaging"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def _oldest(requirement: Requirement) -> str:
    (least,) = (s.version for s in requirement.specifier if s.operator == ">=")
    return f"{requirement.name}=={least}" + ".0" * (2 - least.count("."))
