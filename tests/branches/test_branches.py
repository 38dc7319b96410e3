"""A few of the models that the command makes."""

from __future__ import annotations

from tests.branches.branch_models import failures


def test_branches_that_compute_the_same():
    assert not [text for number in range(40) for text in failures(1, number)]
