"""Test limits of the evaluation of constants.

A node that crashes, takes too long or takes too much memory is kept. Other nodes are folded.
"""

import os
import sys

import numpy as np
import onnx
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "passes"))
from fold_check import fold, parse, with_weights
from processes import ACCESS_VIOLATION

from onnxfold.fold.evaluation import TimeLimit, time_for
from onnxfold.support.parallel import for_each

MORE = "more = Constant <value = bool {1}> ()"
LOOP = """n = Constant <value_int = 3> ()
    w = Loop (n, "", s) <body = c (int64 j, bool l, float[2] d) => (bool l2, float[2] d2)
        { l2 = Identity (l) d2 = Mul (d, d) }>"""


def model_with_loop(text: str):
    """Return a model with the nodes in ``text``, which produce z, and a Loop that is folded."""
    proto = parse(
        f"g (float[2] x) => (float[2] y) {{ {MORE} {text} {LOOP} v = Add (z, w) y = Add (v, x) }}"
    )
    return with_weights(proto, s=np.array([0.5, 0.25], np.float32))


CRASH = """m = Constant <value_int = 2> ()
    "", z = Loop (m, "", more) <body = b (int64 i, bool k, bool a) => (bool k2, bool a2, float o)
        { k2 = Identity (k) a2 = Identity (a) o = Constant <value_float = 1.5> () }>"""
ENDLESS = """z = Loop ("", more, s) <
        body = b (int64 i, bool k, float[2] a) => (bool k2, float[2] a2)
        { k2 = Identity (k) a2 = Add (a, s) }>"""
GROWING = """m = Constant <value_int = 40> ()
    f = Loop (m, "", s) <body = b (int64 i, bool k, float[q] a) => (bool k2, float[r] a2)
        { k2 = Identity (k) a2 = Concat <axis = 0> (a, a) }>
    z = ReduceSum <keepdims = 1> (f)"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CRASH, f"onnxruntime crashed with {ACCESS_VIOLATION}"),
        (ENDLESS, "computing it takes longer than 1.0 s"),
        (GROWING, "computing it takes more than 33,554,432 bytes of memory"),
    ],
)
def test_refused_nodes_have_a_reason_and_others_are_computed(text, reason):
    folded = fold(model_with_loop(text), time=TimeLimit(2.0), memory_limit=1 << 25)
    assert folded.reasons["Loop"] == reason
    assert folded.ops["Loop"] == 1
    assert "Mul" not in folded.ops


def test_all_nodes_of_a_model_share_one_time_limit():
    loops = " ".join(
        ENDLESS.replace("z =", f"z{k} =").replace("= b", f"= b{k}").replace("(a, s)", f"(a, s{k})")
        for k in range(5)
    )
    proto = parse(
        f"g (float[2] x) => (float[2] y) {{ {MORE} {loops} y = Sum (x, z0, z1, z2, z3, z4) }}"
    )
    weights = {f"s{k}": np.array([k, 1], np.float32) for k in range(5)}
    proto = with_weights(proto, **weights, s=np.array([0, 1], np.float32))
    folded = fold(proto, time=TimeLimit(2.0))
    reasons = [d.reason for d in folded.outcome.kept_nodes.values() if d.op_type == "Loop"]
    assert len(reasons) == 5
    assert reasons[-1] == "the 2.0 s for evaluating constants of this model are used up"
    assert 1 <= sum("takes longer" in reason for reason in reasons) <= 3


def test_time_of_failing_threads_is_counted():
    limit = TimeLimit(1.0)
    with pytest.raises(ZeroDivisionError), limit.spending():
        for_each(range(2), lambda _: sum(range(4_000_000)) / 0, 2)
    assert limit.remaining < 0.98


def test_larger_models_have_a_longer_time_limit():
    assert time_for(1 << 30).seconds > 60


def test_evaluated_strings_are_complete():
    proto = parse(
        """g (string[4] x) => (string[4] y, string[2, 2] z) {
            a = StringConcat (s, t) q, n = StringSplit <delimiter = "|"> (a)
            z = StringConcat (q, e) y = Identity (x) }"""
    )
    strings = {"s": ["ä|", "x"], "t": ["b" * 5000, "y|"], "e": ["!"]}
    arrays = {n: onnx.numpy_helper.from_array(np.array(s, object)) for n, s in strings.items()}
    folded = fold(with_weights(proto, **arrays), {"x": np.array(list("abcd"), object)})
    assert list(folded.ops) == ["Identity"]
