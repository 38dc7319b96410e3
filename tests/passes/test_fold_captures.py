"""What subgraphs read from outside: kept until it is read, and found whatever it is called."""

from __future__ import annotations

import numpy as np
import pytest
from fold_check import X, fold, large, parse, with_weights

# names that an engine could give to values of its own
NAMES = ("c0", "c1", "c2", "c3", "r0_0", "r1_0", "i0", "i1", "o0", "b0", "b1", "fold")

LOOP = """z = Loop (n, "", s) <body = b (int64 i, bool k, float[2] a) => (bool k2, float[2] a2)
    {{ k2 = Identity (k) {body} }}>"""


def model(body, before="", weights=(), opset=21):
    """y = x + the result of a constant Loop that starts with ``s``."""
    loop = LOOP.format(body=body)
    proto = parse(f"g (float[2] x) => (float[2] y) {{ {before} {loop} y = Add (x, z) }}", opset)
    return with_weights(proto, n=np.array(2), s=np.array([0.5, 0.25], np.float32), **dict(weights))


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_value_may_be_called_anything(name):
    weights = {name: np.array([10, 20], np.float32)}
    assert fold(model(f"a2 = Add (a, {name})", weights=weights), X).ops == {"Add": 1}


@pytest.mark.parametrize("name", NAMES)
def test_a_value_inside_may_be_called_anything(name):
    weights = {"w": np.array([10, 20], np.float32)}
    body = f"{name} = Mul (a, w) a2 = Add ({name}, w)"
    assert fold(model(body, weights=weights), X).ops == {"Add": 1}


def test_two_functions_capture_different_values_of_the_same_name():
    function = """
    <domain: "local", opset_import: ["" : 21]> f{k} (n, s) => (z) {{
        w = Constant <value_floats = [{k}.0, 2.0]> ()
        z = Loop (n, "", s) <body = b (int64 i, bool k, float[2] a) => (bool k2, float[2] a2)
            {{ k2 = Identity (k) a2 = Mul (a, w) }}> }}"""
    proto = parse(
        "g (float[2] x) => (float[2] y) { p = local.f3 (n, s) q = local.f5 (n, p) y = Add (x, q) }"
        + function.format(k=3)
        + function.format(k=5)
    )
    proto = with_weights(proto, n=np.array(2), s=np.array([0.5, 0.25], np.float32))
    assert fold(proto, X).ops == {"Add": 1}


def test_loops_in_loops_capture_from_both_levels():
    body = """r0_0 = Mul (a, u) c0 = Sin (r0_0)
        a2 = Loop (m, "", r0_0) <body = bb (int64 j, bool l, float[2] d) => (bool l2, float[2] d2)
            { l2 = Identity (l) q = Mul (d, w) d2 = Add (q, c0) }>"""
    before = "u = Sin (w) m = Abs (n)"
    weights = {"w": np.array([0.75, 1.5], np.float32)}
    assert fold(model(body, before, weights), X).ops == {"Add": 1}


@pytest.mark.parametrize("shape", [[2], [3000]])
def test_a_scan_captures_what_is_computed_later(shape):
    size = shape[0]
    proto = parse(
        f"""g (float[{size}] x) => (float[{size}] y) {{
            e = Exp (w) v = Sin (e)
            z, all = Scan <num_scan_inputs = 1, body = b (float[{size}] a, float[{size}] t)
                => (float[{size}] a2, float[{size}] o) {{ a2 = Add (a, t) o = Mul (a2, v) }}> (w, p)
            y = Add (x, z) }}"""
    )
    proto = with_weights(proto, w=large(*shape), p=large(3, *shape, seed=1))
    assert fold(proto, {"x": large(*shape, seed=2)}).ops == {"Add": 1}


def test_what_only_a_folded_node_in_the_body_reads_is_there_when_the_body_runs():
    body = "t = Cos (v) a2 = Add (a, t)"
    folded = fold(model(body, "v = Sin (w)", {"w": np.array([0.75, 1.5], np.float32)}), X)
    assert folded.ops == {"Add": 1}


def test_a_loop_that_stays_keeps_what_its_body_reads():
    proto = parse(
        """g (float[2] x) => (float[n, 2] y) { v = Sin (w)
            last, all = Loop (n, "", w) <
                body = b (int64 i, bool k, float[2] a) => (bool k2, float[2] a2, float[2] o)
                { k2 = Identity (k) t = Cos (v) u = Abs (v) a2 = Add (a, t) o = Mul (a2, u) }>
            y = Add (all, x) }"""
    )
    proto = with_weights(proto, n=np.array(1000), w=np.array([0.75, 1.5], np.float32))
    folded = fold(proto, X)
    assert folded.ops == {"Loop": 1, "Add": 2, "Identity": 1, "Mul": 1}
    assert "grow" in folded.reasons["Loop"]


@pytest.mark.parametrize("size", [8, 2000])
@pytest.mark.parametrize(
    "chain",
    [
        "o = Optional (w) z = OptionalGetElement (o)",
        "o = SequenceConstruct (w, w) k = Constant <value_int = 1> () z = SequenceAt (o, k)",
        """o = SequenceConstruct (w, w) k = Constant <value_int = 1> () a = SequenceAt (o, k)
           e = Exp (a) b = SequenceInsert (o, e) c = SequenceAt (b, k) z = Add (c, e)""",
        "o = SplitToSequence <axis = 0> (w) z = ConcatFromSequence <axis = 0> (o)",
        "e = SequenceEmpty () o = SequenceInsert (e, w) z = ConcatFromSequence <axis = 0> (o)",
    ],
)
def test_constants_of_any_size_pass_through_sequences_and_optionals(chain, size):
    proto = parse(f"g (float[{size}] x) => (float[{size}] y) {{ {chain} y = Add (x, z) }}")
    folded = fold(with_weights(proto, w=large(size)), {"x": large(size, seed=1)})
    assert folded.ops == {"Add": 1}
