from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_pyproject_lists_every_package():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = [init.parent.relative_to(ROOT) for init in ROOT.glob("onnxfold/**/__init__.py")]
    expected = {".".join(folder.parts) for folder in folders} | {"onnxfold.rules"}
    expected |= {
        ".".join(["onnxfold", *init.parent.relative_to(ROOT).parts])
        for init in ROOT.glob("rules/**/__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == expected
