"""What must not be frozen or assumed: dims that are 0 or 1 or anything else in some run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fact_check import FactCheck
from symbolic_check import floats, inputs, rewrite


def test_what_onnx_infers_and_onnxruntime_does_not_make():
    """Defaults of attributes that inference passes over; where a scalar is not zero."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[2,12,1] w, float x, float[N] v) => (float[a,b,c,d] y)
        <int64 n = {4}, int64 e = {1}>
        { y = STFT(w, e, "", n)  z = STFT<onesided=0>(w, e, "", n)
          p = NonZero(x)  q = NonZero(v) }"""
    check = FactCheck(onnx.parser.parse_model(text))
    for count in (0, 3):
        assert (
            check.check({"w": floats(2, 12, 1), "x": np.array(3, np.float32), "v": floats(count)})
            > 9
        )


@pytest.mark.parametrize("declared", ["float", "float[2,3]", "float[a,3]", "float[N,3]"])
@pytest.mark.parametrize("turns", ["n", "two"])
def test_a_loop_without_a_turn_makes_what_its_body_declares(declared, turns):
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[N,3] x, int64 n) => (int64[a] y) <bool c = {{1}}, int64 two = {{2}}>
        {{ o, t = Loop({turns}, c, x) <body = b (int64 i, bool k, {declared} s)
              => (bool k2, {declared} s2, {declared} r) {{
                  k2 = Identity(k)  s2 = Neg(s)  r = Exp(s) }}>
          y = Shape(t) }}"""
    model = onnx.parser.parse_model(text)
    for value in (*(body := model.graph.node[0].attribute[0].g).input, *body.output):
        if declared == "float" and value.name in ("s", "s2", "r"):
            value.type.tensor_type.ClearField("shape")
    check = FactCheck(model)
    for count in (0, 2):
        assert check.check({"x": floats(2, 3), "n": np.array(count)}) > 3


def test_expand_to_a_fixed_shape_keeps_the_batch_dynamic():
    model = rewrite(
        """g (float[B,4] x) => (float[M,4] y) <int64[2] s = {3, 4}>
        { e = Expand(x, s)  y = Relu(e) }"""
    )
    assert model.ops["Expand"] == 1
    model.check(*inputs([(3, 4), (1, 4)]))


def test_stale_value_info_is_not_believed():
    model = rewrite(
        """g (float[B,4] x) => (int64[2] y) <float[7,9] r>
        { r = Relu(x)  y = Shape(r) }"""
    )
    assert model.ops["Shape"] == 1
    model.check(*inputs([(2, 4), (0, 4), (5, 4)]))


def test_two_dynamic_dims_are_copied():
    model = rewrite(
        """g (float[B,S,12] x) => (float[B,S,3,4] y) <int64[2] c = {3, 4}, int64[1] zero = {0},
        int64[1] one = {1}>
        { s = Shape(x)  b = Gather(s, zero)  t = Gather(s, one)  to = Concat<axis=0>(b, t, c)
          y = Reshape(x, to) }"""
    )
    assert dict(model.ops) == {"Reshape": 1}
    assert model.constant("y") == [0, 0, 3, 4]
    model.check(*inputs([(2, 3, 12), (1, 1, 12), (0, 3, 12), (2, 0, 12), (7, 5, 12)]))


def test_an_empty_batch_allows_no_minus_one_beside_it():
    """[B, S*4] of [B, S, 4] would be [0, -1], which has no meaning if B is 0."""
    model = rewrite(
        """g (float[B,S,4] x) => (float[B,M] y) <int64 four = {4}, int64[1] zero = {0},
        int64[1] one = {1}>
        { s = Shape(x)  b = Gather(s, zero)  t = Gather(s, one)  m = Mul(t, four)
          to = Concat<axis=0>(b, m)  y = Reshape(x, to) }"""
    )
    model.check(*inputs([(2, 3, 4), (1, 1, 4), (0, 3, 4), (2, 0, 4), (0, 0, 4)]))


def test_one_dynamic_dim_is_what_is_left():
    model = rewrite(
        """g (float[B,S,4] x) => (float[M,4] y) <int64[1] four = {4}, int64[1] zero = {0},
        int64[1] one = {1}>
        { s = Shape(x)  b = Gather(s, zero)  t = Gather(s, one)  m = Mul(b, t)
          to = Concat<axis=0>(m, four)  y = Reshape(x, to) }"""
    )
    assert model.constant("y") == [-1, 4]
    model.check(*inputs([(2, 3, 4), (1, 1, 4), (0, 3, 4), (2, 0, 4), (0, 0, 4)]))


def test_a_zero_in_the_operand_means_the_size_at_its_place():
    """n = 0 asks for the size 2 of the input, so y has no dim that is n in every run."""
    model = rewrite(
        """g (float[2,3] x, int64[1] n) => (float[M,3] y, int64[2] z) <int64[1] three = {3}>
        { to = Concat<axis=0>(n, three)  y = Reshape(x, to)  z = Shape(y) }"""
    )
    x = floats(2, 3)
    model.check(*({"x": x, "n": np.array([n])} for n in (0, 2, -1)))


def test_negative_bounds_on_a_dynamic_dim():
    model = rewrite(
        """g (float[B,4] x) => (float[M,4] y, int64[2] s, float[K,4] z)
        <int64[1] a = {-3}, int64[1] b = {-1}, int64[1] zero = {0}, int64[1] five = {5}>
        { y = Slice(x, a, b, zero)  s = Shape(y)  z = Slice(x, zero, five, zero) }"""
    )
    assert model.ops["Slice"] == 2
    model.check(*inputs([(n, 4) for n in range(8)]))


def test_a_slice_over_the_whole_axis_goes():
    model = rewrite(
        """g (float[B,4] x) => (float[B,4] y) <int64[1] zero = {0}, int64[1] one = {1}>
        { s = Shape(x)  b = Gather(s, zero)  t = Slice(x, zero, b, zero)  y = Relu(t) }"""
    )
    assert dict(model.ops) == {"Relu": 1}
    model.check(*inputs([(0, 4), (1, 4), (3, 4)]))


def test_a_slice_of_known_elements_to_a_dynamic_end():
    """Position ids: of the elements nothing is known any more, but of the shape."""
    model = rewrite(
        """g (float[B,S,2] x, float[8,2] table) => (float[B,S,2] y)
        <int64[1,8] ids = {0,1,2,3,4,5,6,7}, int64[1] zero = {0}, int64[1] one = {1}>
        { s = Shape(x)  n = Gather(s, one)  at = Slice(ids, zero, n, one)  e = Gather(table, at)
          t = Add(x, e)  r = Reshape(t, s)  y = Neg(r) }"""
    )
    assert "Reshape" not in model.ops
    model.check(*({"x": floats(2, n, 2), "table": floats(8, 2)} for n in (1, 3, 8)))


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_divisions_of_negative_numbers(op):
    """The size 3 - B is negative for a large B: Div rounds towards 0, Mod downwards."""
    model = rewrite(
        f"""g (float[B,4] x) => (int64[1] y, int64[1] z) <int64[1] zero = {{0}},
        int64[1] three = {{3}}, int64[1] two = {{2}}, int64[1] minus = {{-2}}>
        {{ s = Shape(x)  b = Gather(s, zero)  d = Sub(three, b)  y = {op}(d, two)
           z = {op}(b, minus) }}"""
    )
    model.check(*inputs([(n, 4) for n in range(8)]))


def test_range_over_a_dynamic_size():
    model = rewrite(
        """g (float[B,4] x) => (int64[N] y, int64[1] n, int64[M] z, int64[1] m)
        <int64 zero = {0}, int64 one = {1}, int64 three = {3}, int64 minus = {-2}>
        { s = Shape(x)  b = Gather(s, zero)  y = Range(zero, b, one)  n = Shape(y)
          z = Range(b, three, minus)  m = Shape(z) }"""
    )
    assert model.ops["Range"] == 2
    model.check(*inputs([(n, 4) for n in (0, 1, 2, 3, 4, 9)]))


def test_an_undecidable_comparison_stays():
    model = rewrite(
        """g (float[B,4] x) => (float[B,4] y) <int64 zero = {0}, int64 three = {3}>
        { s = Shape(x)  b = Gather(s, zero)  c = Less(b, three)
          y = If(c) <then_branch = t () => (float[B,4] p) { p = Neg(x) },
                     else_branch = e () => (float[B,4] q) { q = Relu(x) }> }"""
    )
    assert model.ops["If"] == 1
    model.check(*inputs([(n, 4) for n in (0, 1, 3, 5)]))


def test_a_decidable_comparison_goes():
    model = rewrite(
        """g (float[B,4] x) => (float[B,4] y) <int64 zero = {0}, int64 minus = {-1}>
        { s = Shape(x)  b = Gather(s, zero)  c = Greater(b, minus)
          y = If(c) <then_branch = t () => (float[B,4] p) { p = Neg(x) },
                     else_branch = e () => (float[B,4] q) { q = Relu(x) }> }"""
    )
    assert dict(model.ops) == {"Neg": 1}
    model.check(*inputs([(n, 4) for n in (0, 1, 3)]))


def test_torch_expand_idiom():
    model = rewrite(
        """g (float[B,4] x) => (float[B,4] y) <float[1,4] w = {1, 2, 3, 4}, int64[1] four = {4},
        int64[1] zero = {0}, int64[2] minus = {-1, -1}, int64[2] ones = {1, 1}>
        { s = Shape(x)  b = Gather(s, zero)  to = Concat<axis=0>(b, four)
          c = Equal(to, minus)  k = Where(c, ones, to)  e = Expand(w, k)  y = Add(x, e) }"""
    )
    assert model.ops["Where"] == model.ops["Equal"] == model.ops["Concat"] == 0
    model.check(*inputs([(2, 4), (1, 4), (0, 4), (5, 4)]))


def test_a_loop_whose_body_changes_sizes():
    model = rewrite(
        """g (float[B,4] x, int64 n) => (float[M,4] y, int64[2] z, float[K] v)
        { t = Constant <value = bool {1}> ()
          y, v = Loop(n, t, x) <body = b (int64 i, bool c, float[K,4] a)
              => (bool d, float[L,4] o, float p)
            { d = Identity(c)  s = Shape(a)  o = Concat<axis=0>(a, x)
              zero = Constant<value_int = 0>()  k = Gather(s, zero)  p = Cast<to=1>(k) }>
          z = Shape(y) }"""
    )
    feeds = [{"x": floats(b, 4), "n": np.array(n)} for b in (0, 1, 3) for n in (0, 1, 4)]
    model.check(*feeds)


def test_a_loop_whose_body_keeps_sizes():
    model = rewrite(
        """g (float[B,4] x, int64 n) => (float[B,4] y) <int64[1] four = {4}, int64[1] zero = {0}>
        { t = Constant <value = bool {1}> ()
          y = Loop(n, t, x) <body = b (int64 i, bool c, float[K,4] a) => (bool d, float[K,4] o)
            { d = Identity(c)  s = Shape(a)  k = Gather(s, zero)  to = Concat<axis=0>(k, four)
              r = Reshape(a, to)  o = Neg(r) }> }"""
    )
    assert model.ops["Reshape"] == model.ops["Shape"] == 0
    model.check(*({"x": floats(b, 4), "n": np.array(n)} for b in (0, 1, 3) for n in (0, 1, 4)))


def test_a_loop_that_counts_in_a_carried_number():
    model = rewrite(
        """g (float[B,4] x, int64 n) => (int64[1] y, float[N] z) <int64[1] one = {1}>
        { t = Constant <value = bool {1}> ()
          y = Loop(n, t, one) <body = b (int64 i, bool c, int64[1] a) => (bool d, int64[1] o)
            { d = Identity(c)  o = Add(a, one) }>
          z = ConstantOfShape(y) }"""
    )
    assert model.ops["Loop"] == 1
    model.check(*({"x": floats(2, 4), "n": np.array(n)} for n in (0, 1, 4)))


@pytest.mark.parametrize(("opset", "attribute"), [(13, ""), (18, ""), (18, "<allowzero=1>")])
@pytest.mark.parametrize("target", ["b, rest", "b, t, rest", "b, t, rest, two", "rest, t, two"])
def test_what_is_left_beside_an_empty_axis(opset, attribute, target):
    """onnxruntime gives a -1 beside a 0 a meaning if allowzero is set."""
    model = rewrite(
        f"""g (float[B,S,4] x) => (float y, int64[n] z, float w) <int64[1] zero = {{0}},
        int64[1] one = {{1}}, int64[1] rest = {{-1}}, int64[1] two = {{2}}>
        {{ s = Shape(x)  b = Gather(s, zero)  t = Gather(s, one)
           to = Concat<axis=0>({target})  y = Reshape{attribute}(x, to)  z = Shape(y)
           w = ConstantOfShape(z) }}""",
        opset,
    )
    model.check(*inputs([(2, 3, 4), (1, 1, 4), (0, 3, 4), (2, 0, 4), (5, 2, 4)]))


def test_what_is_left_of_sizes_that_are_joined():
    """[B * H, 4] to [B, -1] with allowzero: for B = 0 the -1 is 4, not H * 4."""
    model = rewrite(
        """g (float[B,H,4] x) => (float y, int64[2] z) <int64[1] zero = {0}, int64[1] rest = {-1},
        int64[2] join = {-1, 4}>
        { s = Shape(x)  b = Gather(s, zero)  j = Reshape(x, join)  to = Concat<axis=0>(b, rest)
          y = Reshape<allowzero=1>(j, to)  z = Shape(y) }"""
    )
    model.check(*inputs([(2, 3, 4), (0, 3, 4), (2, 1, 4)]))


def test_constants_of_two_branches_are_compared_by_their_bits():
    model = rewrite(
        """g (bool c, float[2] x) => (float[2] y)
        { z = If (c) <
            then_branch = t () => (float[1] u) { u = Constant <value_floats = [0.0]> () },
            else_branch = e () => (float[1] v) { v = Constant <value_floats = [-0.0]> () }
          >
          y = Div(x, z) }"""
    )
    x = np.float32([1, -1])
    model.check(*({"c": np.array(c), "x": x} for c in (True, False)))


@pytest.mark.parametrize("size", ["3", "N"])
def test_slices_to_the_ends_of_integers(size):
    lowest, highest = -(2**63), 2**63 - 1
    for start, end, step in [
        *((0, lowest + 1, 1), (0, lowest, 1), (lowest, highest, 1), (highest, highest, 1)),
        *((-1, highest, -1), (-1, 2**31 - 1, -1), (highest, lowest, -1), (0, highest, 2**62)),
    ]:
        model = rewrite(
            f"""g (float[{size},2] x) => (float[M,2] y, int64[2] s)
            <int64[1] a = {{{start}}}, int64[1] b = {{{end}}}, int64[1] z = {{0}},
            int64[1] k = {{{step}}}>
            {{ t = Slice(x, a, b, z, k)  s = Shape(t)  y = Neg(t) }}"""
        )
        model.check(*inputs([(3, 2)]))


def test_numbers_that_wrap_are_not_sizes():
    model = rewrite(
        """g (float[N,2] x) => (int64[1] y, int64[1] z)
        <int64[2] big = {9223372036854775807, 9223372036854775807}, int64[2] one = {1, 1},
        int64[1] last = {1}, int64[2] least = {-9223372036854775808, -9223372036854775808},
        int64[2] less = {-1, -1}>
        { s = Shape(x)  m = Min(s, one)  a = Concat<axis=0>(last, last)
          t = Max(big, m)  u = Add(t, one)  y = Gather(u, last)
          v = Less(t, least)  w = Cast<to=7>(v)  z = Gather(w, last) }"""
    )
    model.check(*inputs([(3, 2), (1, 2)]))


def test_a_condition_that_holds_takes_the_sign_off_a_zero():
    model = rewrite(
        """g (float[N] x) => (float[N] y)
        { s = Shape(x)  e = Equal(s, s)  y = Where(e, x, x) }"""
    )
    model.check({"x": np.float32([-0.0, 1])})


def test_pieces_of_given_sizes_may_lose_their_axis():
    model = rewrite(
        """g (float[3,4] x) => (int64[k] y) <int64 one = {1}>
        { s = SplitToSequence<axis=1, keepdims=0>(x, one)  e = SequenceAt(s, one)  y = Shape(e) }"""
    )
    model.check(*inputs([(3, 4)]))


def test_to_squeeze_no_axes_is_to_squeeze_all():
    model = rewrite(
        """g (float[1,N,1] x) => (int64[k] y) <int64[0] none = {}>
        { s = Squeeze(x, none)  y = Shape(s) }"""
    )
    model.check(*inputs([(1, 3, 1), (1, 1, 1)]))


def test_a_window_that_does_not_fit_has_a_place_on_onnxruntime():
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[1,1,1,4] x) => (int64[4] y) {
            p = MaxPool<kernel_shape=[2,1], strides=[2,1]>(x)  y = Shape(p) }"""
    check = FactCheck(onnx.parser.parse_model(text))
    assert check.check({"x": floats(1, 1, 1, 4)}) > 0
