"""The site builds without a warning: pages, links, anchors, docstrings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfold.rewrite.rule import builtin_rule_sets

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_builds_strictly(tmp_path):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    words = ("-m", "mkdocs", "build", "--strict", "--config-file", ROOT / "docs" / "mkdocs.yml")
    done = subprocess.run(
        [sys.executable, *words, "--site-dir", tmp_path / "site"],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "fp16" in (tmp_path / "site" / "search" / "search_index.json").read_text()
    for rule_set in builtin_rule_sets():
        page = tmp_path / "site" / "rules" / f"{rule_set.name}.html"
        catalogue = page.read_text(encoding="utf-8")
        for rule in rule_set:
            assert f"<code>{rule.name}</code>" in catalogue
