"""What kernels may be called with, and what is not compiled because nothing could be certain."""

import re

import numpy as np
import pytest
from runtime_models import assert_same, needs_iree, original, parse, random, session_on

from onnxfold import storage
from onnxfold.errors import UsageError
from onnxfold.runtime.backends.component import demands
from onnxfold.runtime.sessions.session import Session

# Graphs, and the sizes of their inputs (-: any), or ! and the reason why they are not compiled.
GRAPHS = """
(float[64, r] a, float[r, 64] b) => (float[64, 64] y) { y = MatMul(a, b) } | 64,r r,64
(float[64, r] a, float[s, 64] b) => (float[64, 64] y) { y = MatMul(a, b) } | 64,r r,64
(float[64, r] a, float[8, 64] b) => (float[64, 64] y) { y = MatMul(a, b) } | 64,8 8,64
(float[2, n] a, float[m] b) => (float[2, n] y) { y = Add(a, b) } | 2,n n
(float[n, 1] a, float[1, m] b) => (float[n, m] y) { y = Add(a, b) } | n,1 1,m
(float[n] a, float[m] b) => (float[p] y) { y = Concat<axis = 0>(a, b) } | n m
(float[n, 2] a, float[n, k] b) => (float[p, 2] y) { y = Concat<axis = 0>(a, b) } | n,2 n,2
(float[n] a, float[m] b, float[p] c) => (float[n] y) { t = Mul(a, b) y = Sub(t, c) } | n n n
(float[b, n, 64] a) => (float[b, n, 4, 16] y) <int64[4] s = {0, 0, 4, 16}> { y = Reshape(a, s) }
    | b,n,64
(float[n, 4] a, float[m, 4] b) => (float[n, 4] y) { s = Shape(a) y = Expand(b, s) } | n,4 n,4
(float[n, m] a) => (float[n, 77] y) { y = Add(a, w) } | n,77
(float[9, 8] a) => (float[2, 8] y) <int64[2] i = {0, -9}> { y = Gather(a, i) } | -
(float[n] a, float[n] b) => (float[n] y) { y = Div(a, b) } | -
(int64[n] a) => (int64[n] y) <int64 two = {2}> { y = Div(a, two) } | -
(float[3, 4] a) => (float[3] y) { y = Einsum<equation = "ij->i">(a) } | -
(float[n, 4] a, float[m] b) => (float[4] y) { y = Einsum<equation = "ij,i->j">(a, b) } | n,4 n
(float[n, 4] a) => (float[n, 4] y) { y = Softmax(a) } | -
(float[m, 8] a, int64[n] b) => (float[n, 8] y) { y = Gather(a, b) } ! "b" says where
(float[9] a, int64[4] i) => (float[4] y) { y = GatherElements(a, i) } ! "i" says where
(float[9] a, int64[2, 1] i, float[2] u) => (float[9] y) { y = ScatterND(a, i, u) } ! "i" says where
(float[9] a, int64[1] k) => (float[9] y) { y = Expand(a, k) } ! "k" says where
(float[9] a, int64[1] k) => (float[9] y) { y = Reshape(a, k) } ! "k" says where
(float[9] a, int64[1] k) => (float[n] y) { y = Tile(a, k) } ! "k" says where
(float[9] a) => (int64[1, n] y) { y = NonZero(a) } ! depends on values
(float[9] a, int64 k) => (float[9] y) { y = CumSum(a, k) } ! "k" says where
(int32[n] a, int32[n] b) => (int32[n] y) { y = Div(a, b) } ! divide by 0
(int64[n] a, int64[n] b) => (int64[n] y) { y = Mod(a, b) } ! divide by 0
(int64[n] a) => (int64[n] y) <int64[2] w = {3, -1}> { y = Div(a, w) } ! divide by 0
(float[n] a) => (float[m, 4] y) <int64[2] s = {-1, 4}> { y = Reshape(a, s) } ! not certain
(float[n] a) => (float[m] y) <int64[1] s = {1}, int64[1] e = {-1}> { y = Slice(a, s, e) }
    ! may have no elements
(float[n, 8] a) => (float[m, 8] y) <int64[2] i = {0, 5}> { y = Gather(a, i) } ! within bounds
(float[n, 2, 2] a) => (float[n] y) { y = Det(a) } ! not certain
(float[0, 3] a) => (float[0, 3] y) { y = Exp(a) } ! has no elements
"""


@pytest.mark.parametrize("row", re.sub(r"\n +", " ", GRAPHS).strip().splitlines())
def test_what_may_fail_is_not_compiled_and_sizes_that_must_agree_have_one_name(row):
    text, mark, expected = re.fullmatch(r"(.*) ([|!]) (.*)", row).groups()
    model = parse(f"g {text}", **({"w": random(1, 77)} if "77" in text else {}))
    known = demands(storage.from_proto(model))
    if mark == "!":
        assert expected.replace('"', "'") in known.reason
    else:
        assert known.reason is None
        shapes = " ".join(",".join(map(str, info.shape)) for info in known.inputs)
        assert expected in ("-", shapes)


def opened(model, *names: str, backend: str) -> Session:
    made = session_on(model, *names, backend=backend)
    assert [(p.backend, p.reason) for p in made.placements()] == [(backend, None)]
    return made


def test_sizes_that_do_not_agree_are_an_error(compiling):
    model = parse("merged factors", w=random(64, 64))
    session = opened(model, "a", "b", backend=compiling)
    feeds = {"x": random(3, 64), "a": random(64, 8), "b": random(8, 64)}
    want = original(model, feeds)[0]
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=r"'r' is 8 in 'a' and 4 in 'b'"):
        session.run(None, {**feeds, "b": random(4, 64)})
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4)
    assert session.placements()[0].backend == compiling


def test_sizes_that_agree_otherwise_are_computed_by_onnxruntime(compiling):
    model = parse("sum of two constants")
    session = opened(model, "a", "b", backend=compiling)
    for sizes in ((8, 8), (8, 1), (1, 8), (5, 5)):
        feeds = {"x": random(3, 64), "a": random(64, sizes[0]), "b": random(64, sizes[1])}
        want = original(model, feeds)[0]
        np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=r"'r' is 8 in 'a' and 3 in 'b'"):
        session.run(None, {**feeds, "a": random(64, 8), "b": random(64, 3)})


def test_what_has_no_elements_is_computed_by_onnxruntime(compiling):
    model = parse("merged factors", w=random(64, 64))
    session = opened(model, "a", "b", backend=compiling)
    feeds = {"x": random(3, 64), "a": random(64, 0), "b": random(0, 64)}
    assert_same(session.run(None, feeds), original(model, feeds))


@pytest.mark.parametrize(
    "backend", ["counting", pytest.param("iree", marks=[pytest.mark.slow, needs_iree])]
)
def test_tokens_are_embedded_by_a_kernel(backend, compiled):
    """Their indices are looked at before each call."""
    model = parse(
        """g (float[n, 8] x, int64[m] ids) => (float[n, 8] y) {
            rows = Gather(w, ids)
            wide = Neg(rows)
            s = Constant<value = int64[1] {0}> ()
            sum = ReduceSum<keepdims = 0>(wide, s)
            y = Add(x, sum)
        }""",
        w=random(10, 8),
    )
    session = opened(model, "ids", backend=backend)
    feeds = {"x": random(3, 8), "ids": np.array([0, 9, -1, 3, -10])}
    np.testing.assert_allclose(
        *(session.run(None, feeds)[0], original(model, feeds)[0]), rtol=1e-5, atol=1e-5
    )
    for index in (10, -11, 10**9):
        with pytest.raises(UsageError, match="an index in 'ids' is out of bounds: 10 rows"):
            session.run(None, {**feeds, "ids": np.array([0, index])})


def test_half_precision_takes_memory_in_float32_too():
    for dtype, nbytes in (("float", 8), ("float16", 20)):
        model = storage.from_proto(parse(f"g ({dtype}[n] x) => ({dtype}[n] y) {{ y = Neg(x) }}"))
        assert demands(model).memory == [[nbytes, "n"]]
