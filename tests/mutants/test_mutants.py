"""A few mutants of the repository's own models."""

from __future__ import annotations

from .mutant_sources import models
from .mutant_tasks import run


def test_mutants_compute_what_they_computed():
    texts: list[str] = []
    found = run(models(), range(30), texts.append)
    assert found.checked > 15, found.discarded
    assert not found.classes, "\n".join(texts)
