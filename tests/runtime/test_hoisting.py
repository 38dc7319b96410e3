"""What bodies make of runtime constants is made once, if they certainly run."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from runtime_models import options, original, parse, random

from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session

LOOP = """
loop (float[1, 64] x, float[n, k] states) => (float[1, 64] y) {
    steps = Constant <value = int64 {3}> ()
    none = Constant <value = bool {1}> ()
    y = Loop (steps, none, x) <body = body (int64 i, bool go_in, float[1, 64] q) =>
        (bool go, float[1, 64] out) {
        go = Identity(go_in)
        axes = Constant <value_ints = [1, 0]> ()
        keys = MatMul(states, w)
        turned = Transpose <perm = [1, 0]> (keys)
        scores = MatMul(q, turned)
        p = Softmax(scores)
        out = MatMul(p, keys)
    }>
}
"""

CARRIED = """
loop (float[1, 64] x, float[n, 64] states) => (float[1, 64] y, float[n, 64] same) {
    steps = Constant <value = int64 {3}> ()
    y, same = Loop (steps, , x, states) <body = body (int64 i, bool go_in, float[1, 64] q,
        float[n, 64] s) => (bool go, float[1, 64] out, float[n, 64] s_out) {
        go = Identity(go_in)
        keys = MatMul(s, w)
        turned = Transpose <perm = [1, 0]> (keys)
        p = MatMul(q, turned)
        out = MatMul(p, keys)
        s_out = Identity(s)
    }>
}
"""

SCAN = """
scan (float[t, 64] xs, float[64, 64] states) => (float[t, 64] ys) {
    ys = Scan <num_scan_inputs = 1, body = body (float[64] row) => (float[64] out) {
        keys = MatMul(states, w)
        e = Exp(keys)
        out = MatMul(row, e)
    }> (xs)
}
"""

BRANCH = """
branch (bool which, float[m, 64] x, float[n, 64] states) => (float[m, k] y) {
    y = If (which) <
        then_branch = then () => (float[m, n] a) {
            keys = MatMul(states, w)
            turned = Transpose <perm = [1, 0]> (keys)
            a = MatMul(x, turned)
        },
        else_branch = other () => (float[m, 64] b) {
            keys = MatMul(x, w)
            turned = Transpose <perm = [1, 0]> (w)
            b = MatMul(keys, turned)
        }>
}
"""


def opened(text: str, constants=("states",), **arguments) -> tuple[onnx.ModelProto, Session]:
    model = parse(text, w=random(64, 64) / np.float32(8))
    onnx.checker.check_model(model)
    cache = FoldCache()
    return model, Session(model, options(), runtime_constants=constants, cache=cache, **arguments)


def check(model: onnx.ModelProto, session: Session, feeds: dict[str, np.ndarray]) -> None:
    got, want = session.run(None, feeds), original(model, feeds)
    assert [g.shape for g in got] == [w.shape for w in want]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def ops_of(session: Session, part: str) -> list[str]:
    def walk(graph):
        for node in graph:
            yield node.op_type
            for attribute in node.attributes.values():
                if attribute.type.name == "GRAPH":
                    yield from walk(attribute.as_graph())

    return sorted(walk(session.bundle.load(part).graph))


def folded(session: Session) -> list[str]:
    return ops_of(session, "runtime_fold.onnx") if session.bundle.manifest.groups else []


@pytest.mark.parametrize("text", [LOOP, CARRIED])
def test_what_a_loop_makes_of_constants_is_made_once(text):
    model, session = opened(text)
    assert folded(session).count("MatMul") == 1
    assert ops_of(session, "entry.onnx").count("MatMul") == 2
    for seed in (1, 2):
        check(model, session, {"x": random(1, 64), "states": random(9, 64, seed=seed)})
    assert session.fold_statistics().folds == 2


def test_what_a_scan_makes_of_constants_is_made_once():
    model, session = opened(SCAN)
    assert folded(session) == ["Exp", "MatMul"]
    check(model, session, {"xs": random(3, 64), "states": random(64, 64, seed=3)})


COUNTED = LOOP.replace("loop (", "loop (int64 steps, ").replace(
    "steps = Constant <value = int64 {3}> ()", ""
)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_loop_that_may_not_run_keeps_its_nodes(steps):
    model, session = opened(COUNTED)
    assert not folded(session)
    (stay,) = (s for s in session.bundle.manifest.stays if s.op == "MatMul")
    assert stay.reason == "it is in a Loop, whose body may not run"
    feeds = {"steps": np.array(steps), "x": random(1, 64), "states": random(9, 64)}
    check(model, session, feeds)
    if not steps:  # what would fail does not run
        check(model, session, {**feeds, "states": random(9, 63)})


@pytest.mark.parametrize("which", [True, False])
def test_a_branch_keeps_its_nodes(which):
    model, session = opened(BRANCH)
    (branching,) = session.bundle.load("entry.onnx").graph
    assert branching.op_type == "If" and not folded(session)
    feeds = {"which": np.array(which), "x": random(2, 64), "states": random(9, 64)}
    check(model, session, feeds)


def test_what_fails_in_a_body_that_runs_fails():
    session = opened(LOOP)[1]
    with pytest.raises(Exception, match="MatMul"):
        session.run(None, {"x": random(1, 64), "states": random(9, 63)})


def test_a_loop_in_a_loop_and_names_that_bodies_share():
    inner = LOOP[LOOP.index("y = Loop") : LOOP.rindex("}")]
    other = inner.replace("Softmax", "Tanh").replace("y = Loop", "z = Loop")
    text = f"""
    both (float[1, 64] x0, float[n, 64] states) => (float[1, 64] w0) {{
        steps = Constant <value = int64 {{3}}> ()
        none = Constant <value = bool {{1}}> ()
        w0 = Loop (steps, none, x0) <body = outer (int64 j, bool on_in, float[1, 64] x) =>
            (bool on, float[1, 64] s) {{
            on = Identity(on_in)
            {inner}
            {other}
            s = Add(y, z)
        }}>
    }}
    """
    model, session = opened(text)
    assert folded(session).count("MatMul") >= 1
    assert ops_of(session, "entry.onnx").count("MatMul") == 4
    check(model, session, {"x0": random(1, 64), "states": random(9, 64)})


def test_what_a_body_gives_out_is_made_in_it():
    text = """
    out (float[64, 64] states) => (float[3, 64, 64] y, float[64, 64] last) {
        steps = Constant <value = int64 {3}> ()
        last, y = Loop (steps, , states) <body = body (int64 i, bool go_in, float[64, 64] q) =>
            (bool go, float[64, 64] q_out, float[64, 64] a) {
            go = Identity(go_in)
            a = MatMul(states, w)
            q_out = Add(q, a)
        }>
    }
    """
    model, session = opened(text)
    check(model, session, {"states": random(64, 64)})
    assert "MatMul" in folded(session)
