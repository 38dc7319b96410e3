"""Test the limits of memory and time for folds.

Many of the constants have few bytes in the file, but many elements.
"""

import time

import numpy as np
import onnx
import pytest
from fold_check import fold, parse, with_weights

from onnxfold.fold.evaluation import TimeLimit

ENDLESS = "n = Constant <value_ints = [1125899906842624]> () "
LARGE = "n = Constant <value_ints = [3000000]> () "  # a shape with 24 MB of int64 elements
ZERO = "o = Constant <value_ints = [0]> () i = Expand (o, n) k = Constant <value_int = 0> () "


@pytest.mark.parametrize(
    "ops",
    [
        "d = Constant <value_floats = [1.0, 2.0]> () y = Gather (d, i)",
        "y = GatherElements (i, i)",
        "u = Unsqueeze (i, o) y = GatherND (i, u)",
        "b = Cast <to = 9> (i) y = Compress (i, b)",
        "b = Cast <to = 9> (i) w = NonZero (b) y = Squeeze (w)",
        "y = ArgMax (i)",
        "y = CumSum (i, k)",
        "y = Mod (i, n)",
        "y = Unique (i)",
        "y = ConstantOfShape (i)",
        "a, p = TopK (i, n) y = Neg (p)",
    ],
)
def test_repeated_elements_are_not_visited_one_by_one(ops):
    folded = fold(f"g () => (float[m] y) {{ {ENDLESS} {ZERO} {ops} }}")
    assert folded.proto.ByteSize() <= folded.before.ByteSize() + 100
    assert folded.reasons or not folded.ops


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("s = CumSum (i, k) y = ReduceSum (s)", "CumSum"),
        ("f = Cast <to = 1> (i) s = CumSum (f, k) y = ReduceSum (s)", "CumSum"),
        ("f = Cast <to = 1> (i) u, v, w = Unique (f) y = ReduceSum (v)", "Unique"),
        ("q, r = TopK <axis = 0> (i, o) y = ReduceSum (q)", "TopK"),
        (
            """a, t = Scan <num_scan_inputs = 1, body = b (int64[1] s, int64 e)
                => (int64[1] s2, int64[1] e2) { s2 = Add (s, e) e2 = Identity (s2) }> (o, i)
                y = ReduceSum (t)""",
            "Scan",
        ),
    ],
)
def test_nodes_above_the_memory_limit_are_not_folded(text, op):
    folded = fold(f"g () => (int64[m] y) {{ {LARGE} {ZERO} {text} }}", memory_limit=16 << 20)
    assert "memory" in folded.reasons[op]


def test_memory_of_strings_includes_their_texts():
    doubled = " ".join(f"s{k + 1} = StringConcat (s{k}, s{k})" for k in range(20))
    proto = parse(f"g () => (string[1] y) {{ {doubled} y = Identity (s20) }}")
    text = onnx.numpy_helper.from_array(np.array(["x" * 1000], object))
    folded = fold(with_weights(proto, s0=text), memory_limit=32 << 20, time=TimeLimit(20.0))
    assert any("memory" in d.reason for d in folded.outcome.kept_nodes.values())
    assert folded.proto.ByteSize() <= folded.before.ByteSize()


def test_memory_includes_constants_of_a_body():
    body = "{ k2 = Identity (k) w = Constant <value = float[1] {1}> () a2 = Add (a, w) }"
    proto = parse(
        f"""g (float[1] x) => (float[1] y) {{ n = Constant <value_int = 3> ()
        z = Loop (n, "", s) <body = b (int64 i, bool k, float[1] a)
            => (bool k2, float[N] a2) {body}>
        r = ReduceSum (z) y = Add (x, r) }}"""
    )
    weight = np.ones(2 << 20, np.float32)
    constant = proto.graph.node[1].attribute[0].g.node[1].attribute[0].t
    constant.CopyFrom(onnx.numpy_helper.from_array(weight))
    proto = with_weights(proto, s=np.ones(1, np.float32))
    assert "memory" in fold(proto, memory_limit=16 << 20).reasons["Loop"]
    assert fold(proto, {"x": np.ones(1, np.float32)}).ops == {"Add": 1}


def test_the_time_limit_includes_work_by_numpy():
    text = f"g () => (int64[m] y) {{ {LARGE} {ZERO} s = CumSum (i, k) y = ReduceSum (s) }}"
    folded = fold(text, time=TimeLimit(0.01))
    assert "are used up" in folded.reasons["CumSum"]


@pytest.mark.parametrize("op", ["Concat <axis = 0> (u, v)", "Mul (u, v)", "Tanh (u)"])
def test_results_are_written_after_the_time_limit(op):
    proto = parse(f"g (float[1] x) => (float[n, 250] y) {{ w = {op} y = Add (x, w) }}")
    weights = {
        name: np.full((100, 250), k / 2, np.float32) for k, name in enumerate("uv")
    }  # 100 kB each
    proto = with_weights(proto, **weights)
    folded = fold(proto, {"x": np.ones(1, np.float32)}, time=TimeLimit(0.0001))
    assert folded.ops == {"Add": 1} or "are used up" in "".join(folded.reasons.values())


class Charged(TimeLimit):
    """A time limit that records the seconds that were spent before the call of `lift`."""

    spent = 0.0

    def lift(self) -> None:
        self.spent = self.seconds - self.remaining


@pytest.mark.parametrize(
    "ops",
    [
        "a = Sqrt (w) b = Div (a, w) c = Mul (b, b) d = Div (c, a) y = ReduceMax (d)",
        "a = Erf (w) b = Sigmoid (a) y = ReduceMax (b)",
        "u = Transpose (w) a = Add (u, w) y = ReduceMax (a)",
    ],
)
def test_the_time_limit_includes_threads_that_compute_blocks(ops):
    proto = parse(f"g () => (float y) {{ {ops} }}")
    proto = with_weights(proto, w=np.full((1 << 12, 1 << 12), 0.5, np.float32))
    limit = Charged(1000)
    began = time.process_time()
    fold(proto, time=limit, is_valid=False)
    assert limit.spent > (time.process_time() - began) / 5
