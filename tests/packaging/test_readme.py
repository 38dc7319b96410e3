from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_the_first_two_blocks_are_the_demo_and_the_tests():
    assert blocks("sh")[:2] == ["make demo\n", "make test\n"]


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "models", tmp_path / "models")
    (tmp_path / "build").mkdir()
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.endswith("True\n")


def test_options_are_those_of_the_command_line():
    from onnxfold.cli.optimize import optimize

    known = {name for param in optimize.params for name in param.opts + param.secondary_opts}
    named = set(re.findall(r"`(--[a-z-]+)", TEXT.partition("## Options")[2].partition("\n## ")[0]))
    assert named
    assert named <= known
