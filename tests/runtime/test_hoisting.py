"""What bodies make of runtime constants is made once, if they certainly run; see splits.txt."""

from __future__ import annotations

import numpy as np
import pytest
from runtime_models import original, parse, random, session_on

LOOP = """loop ({counted}float[1, 64] x, float[n, k] states) => (float[1, 64] y) {{
    {steps}
    y = Loop (steps, , x) <body = body (int64 i, bool go_in, float[1, 64] q) =>
        (bool go, float[1, 64] out) {{
        go = Identity(go_in)
        keys = MatMul(states, w)
        turned = Transpose <perm = [1, 0]> (keys)
        scores = MatMul(q, turned)
        p = Softmax(scores)
        out = MatMul(p, keys)
    }}>
}}"""


def opened(counted: str, steps: str):
    model = parse(LOOP.format(counted=counted, steps=steps), w=random(64, 64) / np.float32(8))
    return model, session_on(model, "states")


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_loop_that_may_not_run_keeps_its_nodes(steps):
    model, session = opened("int64 steps, ", "")
    assert not session.bundle.manifest.groups
    (stay,) = (s for s in session.bundle.manifest.stays if s.op == "MatMul")
    assert stay.reason == "it is in a Loop, whose body may not run"
    for columns in (64,) if steps else (64, 63):  # what would fail does not run
        feeds = {"steps": np.array(steps), "x": random(1, 64), "states": random(9, columns)}
        np.testing.assert_allclose(session.run(None, feeds), original(model, feeds), rtol=1e-5)


def test_what_fails_in_a_body_that_runs_fails():
    _, session = opened("", "steps = Constant<value = int64 {3}> ()")
    assert session.bundle.manifest.groups
    with pytest.raises(Exception, match="MatMul"):
        session.run(None, {"x": random(1, 64), "states": random(9, 63)})
