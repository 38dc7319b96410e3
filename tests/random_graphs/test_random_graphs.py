"""Check a fixed set of random graphs, and the tolerance of inexact variants.

``python -m tests.random_graphs`` checks more graphs.
"""

import numpy as np
import pytest
from model_table import parse

from tests.reference_session import Reference

from .graph_check import BRANCHES, DEFAULT, FACTS, VARIANTS, Original, problem_of
from .graph_runs import run


@pytest.mark.parametrize(
    # Some seeds are discarded, for example because onnxruntime 1.23 crashes.
    ("seeds", "variants", "least", "module"),
    [
        (range(160, 240), DEFAULT, 48, "generate"),
        pytest.param(range(80, 160), DEFAULT, 48, "generate", marks=pytest.mark.slow),
        (range(500, 530), ("O2", "onnxruntime"), 24, "generate"),
        (range(900_000, 900_020), ("split", "split-late"), 10, "generate"),
        (range(3000, 3120), (FACTS,), 80, "generate"),
        (range(30), DEFAULT, 15, "mutants"),
        (range(40), BRANCHES, 39, "branch_models"),
        (range(40, 60), ("split", "split-late"), 19, "branch_models"),
        (range(150), DEFAULT, 140, "broadcast_models"),
        (range(150, 200), ("O2", FACTS), 45, "broadcast_models"),
    ],
    ids=[
        "exact",
        "exact again",
        "for a target",
        "split",
        "facts about values",
        "mutants of models",
        "branches with equal values",
        "branches, split",
        "constants up to a broadcast",
        "constants up to a broadcast, inexact",
    ],
)
def test_random_graphs(seeds, variants, least, module):
    found = run(seeds, variants, (module,), seconds_to_shrink=10)
    assert found.checked > least, found.discarded
    assert not found.classes, "\n".join(f"{key}\n{found.texts[key]}" for key in found.classes)


@pytest.mark.parametrize(
    ("changed", "after", "problem"),
    [
        ("Mul(x, tenth)", "Sub(a, hundred)", None),  # the terms cancel, which amplifies errors
        ("Mul(x, less)", "Sub(a, hundred)", "far"),
        ("Mul(x, less)", "Neg(a)", "far"),
        ("Mul(x, tenth)", "Floor(a)", None),
        ("Mul(x, less)", "Floor(a)", "far"),
        ("Mul(x, tenth)", "Greater(a, hundred)", None),
        ("Mul(x, less)", "Greater(a, most)", "far"),
    ],
)
def test_tolerance_of_inexact_results_depends_on_roundings(changed, after, problem):
    kind = "bool" if "Greater" in after else "float"
    text = f"""g (float[3] x) => ({kind}[3] y)
        <float ten = {{10}}, float tenth = {{0.1}}, float less = {{0.09}},
        float hundred = {{100}}, float most = {{95}}>
        {{ a = %s y = {after} }}"""
    before, rewritten = (parse(text % first) for first in ("Div(x, ten)", changed))
    feed = {"x": np.float32([1000, 1000.0001, 1000.001])}
    original = Original(before, [feed], [])
    (expected,) = original.runs[0][1]
    (found,) = Reference(rewritten).run(feed)
    judged = problem_of(expected, found, "y", feed, original, VARIANTS["O2"])
    assert (judged and judged[0]) == problem
