"""A model does not grow by folding unless it is asked to."""

from __future__ import annotations

import numpy as np
import pytest
from fold_check import fold, large, parse, with_weights

WIDE = {"x": large(64, 64, seed=8)}


def one_op(op: str, *, result: str = "float[64, 64]", **weights):
    """The op's result, larger than its operands, added to an input of the same shape."""
    model = parse(f"g ({result} x) => ({result} y) {{ v = {op} y = Add (x, v) }}")
    return with_weights(model, **weights)


GROWING = {
    "Expand": one_op("Expand (w, s)", w=large(1, 64), s=np.int64([64, 64])),
    "Tile": one_op("Tile (w, s)", w=large(1, 64), s=np.int64([64, 1])),
    "ConstantOfShape": one_op("ConstantOfShape (s)", s=np.int64([64, 64])),
    "Cast": one_op("Cast <to = 1> (w)", w=large(64, 64).astype(np.float16)),
    "Range": one_op(
        "Range (a, b, c)",
        result="float[4096]",
        a=np.float32(0),
        b=np.float32(4096),
        c=np.float32(1),
    ),
    "OneHot": one_op("OneHot (i, d, v2)", i=np.arange(64), d=np.int64(64), v2=np.float32([0, 1])),
}


def _feeds(model):
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": large(*shape, seed=8)}


@pytest.mark.parametrize("op", GROWING)
def test_what_makes_more_bytes_than_it_reads_stays(op):
    folded = fold(GROWING[op], _feeds(GROWING[op]))
    assert folded.ops == {op: 1, "Add": 1}
    assert "the model would grow" in folded.reasons[op]
    assert "16,384 bytes" in folded.reasons[op]


@pytest.mark.parametrize("op", GROWING)
def test_fold_all_folds_it_anyway(op):
    folded = fold(GROWING[op], _feeds(GROWING[op]), fold_all=True)
    assert folded.ops == {"Add": 1}


@pytest.mark.parametrize("op", GROWING)
def test_enough_max_growth_folds_it_too(op):
    folded = fold(GROWING[op], _feeds(GROWING[op]), max_growth=1 << 20)
    assert folded.ops == {"Add": 1}


def test_max_growth_is_in_bytes():
    """An expansion from 1 KiB to 16 KiB."""
    model = parse(
        """g (float[4, 16, 64] x) => (float[4, 16, 64] y) { v = Expand (w, s) y = Add (x, v) }"""
    )
    with_weights(model, w=large(4, 1, 64), s=np.int64([4, 16, 64]))
    assert "Expand" in fold(model, max_growth=14 << 10).ops
    assert "Expand" not in fold(model, max_growth=16 << 10).ops


def test_small_results_always_fold():
    model = parse("g (float[4] x) => (float[4] y) { v = Expand (w, s) y = Add (x, v) }")
    with_weights(model, w=np.float32([2]), s=np.int64([4]))
    assert fold(model, {"x": large(4)}).ops == {"Add": 1}


def test_what_shrinks_again_folds_with_what_made_it_large():
    model = parse(
        """g (float x) => (float y) {
            wide = Expand (w, s)
            v = ReduceSum <keepdims = 0> (wide)
            y = Add (x, v)
        }"""
    )
    with_weights(model, w=large(1, 64), s=np.int64([64, 64]))
    folded = fold(model, {"x": np.array(1, np.float32)})
    assert folded.ops == {"Add": 1}
    assert folded.outcome.statistics.materialized == 1


def test_work_below_an_expansion_folds_and_the_expansion_stays():
    model = parse(
        """g (float[64, 64] x) => (float[64, 64] y) {
            a = Exp (w)
            b = Neg (a)
            v = Expand (b, s)
            y = Add (x, v)
        }"""
    )
    with_weights(model, w=large(1, 64), s=np.int64([64, 64]))
    folded = fold(model, WIDE)
    assert folded.ops == {"Expand": 1, "Add": 1}
    assert {name for name, w in folded.weights.items() if w.size == 64} == {"b"}


# ---------------------------------------------------------------- one weight, several uses


def uses(*ops: str):
    nodes = "\n".join(f"v{k} = {op} h{k} = MatMul (x, v{k})" for k, op in enumerate(ops))
    names = ", ".join(f"h{k}" for k in range(len(ops)))
    model = parse(f"g (float[64, 64] x) => (float[64, 64] y) {{ {nodes} y = Sum ({names}) }}")
    return with_weights(model, w=large(64, 64))


def test_a_transposed_weight_folds():
    folded = fold(uses("Transpose <perm = [1, 0]> (w)"), WIDE)
    assert "Transpose" not in folded.ops
    assert [w.shape for w in folded.weights.values()] == [(64, 64)]


def test_equal_transposes_of_one_weight_fold_to_one():
    folded = fold(uses("Transpose <perm = [1, 0]> (w)", "Transpose (w)"), WIDE)
    assert "Transpose" not in folded.ops
    assert len(folded.weights) == 1


def test_different_results_of_one_weight_stay():
    folded = fold(uses("Transpose (w)", "Neg (w)", "Exp (w)"), WIDE)
    assert folded.ops["Transpose"] == folded.ops["Neg"] == folded.ops["Exp"] == 1
    assert list(folded.weights) == ["w"]


def test_different_transposes_of_one_weight_stay():
    model = parse(
        """g (float[16, 16, 16] x) => (float[16, 16, 16] y) {
            a = Transpose <perm = [1, 0, 2]> (w)
            b = Transpose <perm = [2, 1, 0]> (w)
            h = Add (x, a)
            y = Mul (h, b)
        }"""
    )
    with_weights(model, w=large(16, 16, 16))
    folded = fold(model, {"x": large(16, 16, 16, seed=3)})
    assert folded.ops == {"Transpose": 2, "Add": 1, "Mul": 1}
    assert list(folded.weights) == ["w"]


def test_a_weight_that_is_used_as_it_is_too():
    folded = fold(uses("Transpose (w)", "Identity (w)"), WIDE)
    assert folded.ops["Transpose"] == 1
    assert "Identity" not in folded.ops
    assert sum(w.nbytes for w in folded.weights.values()) == 64 * 64 * 4


def test_a_weight_that_is_used_through_views_of_all_of_it():
    model = parse(
        """g (float[64, 64] x) => (float[64, 64] y) {
            t = Transpose (w)
            u = Transpose (t)
            e = Exp (w)
            h = MatMul (x, u)
            k = MatMul (h, e)
            y = MatMul (k, w)
        }"""
    )
    folded = fold(with_weights(model, w=large(64, 64)), WIDE)
    assert folded.ops == {"Exp": 1, "MatMul": 3}
    assert len(folded.weights) == 1


def test_pieces_of_a_weight_fold_when_no_byte_is_stored_twice():
    model = parse(
        """g (float[64, 32] x) => (float[64, 32] y) {
            a, b = Split <axis = 1, num_outputs = 2> (w)
            h = Add (x, a)
            y = Mul (h, b)
        }"""
    )
    with_weights(model, w=large(64, 64))
    folded = fold(model, {"x": large(64, 32, seed=3)})
    assert "Split" not in folded.ops
    assert sum(w.nbytes for w in folded.weights.values()) == 64 * 64 * 4


def test_a_concatenation_folds():
    model = parse(
        "g (float[64, 64] x) => (float[64, 64] y) { w = Concat <axis = 1> (a, b) y = Mul (x, w) }"
    )
    with_weights(model, a=large(64, 32), b=large(64, 32, seed=2))
    folded = fold(model, WIDE)
    assert folded.ops == {"Mul": 1}
    assert list(folded.weights) == ["w"]


def test_the_stored_bytes_never_grow():
    for model in [*GROWING.values(), uses("Transpose (w)", "Neg (w)"), uses("Exp (w)")]:
        before = sum(len(t.raw_data) for t in model.graph.initializer)
        folded = fold(model)
        after = sum(w.nbytes for w in folded.weights.values())
        assert after <= before
