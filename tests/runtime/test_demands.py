"""Test the requirements on inputs of kernels, and the reasons not to compile a model."""

import re
from pathlib import Path

import numpy as np
import pytest
from runtime_models import assert_same, needs_iree, original, parse, random, session_on

from onnxfold.ir import storage
from onnxfold.runtime.backends.component import demands
from onnxfold.runtime.sessions.session import Session
from onnxfold.support.errors import UsageError
from onnxfold.support.system import cpu_levels

GRAPHS = Path(__file__).with_name("demands.txt").read_text().partition("\n\n")[2]


@pytest.mark.parametrize("row", re.sub(r"\n +", " ", GRAPHS).strip().splitlines())
def test_sizes_that_must_be_equal_have_one_name_and_ops_that_may_fail_are_not_compiled(row):
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


def test_unequal_sizes_of_one_dimension_are_an_error(compiling):
    model = parse("merged factors", w=random(64, 64))
    session = opened(model, "a", "b", backend=compiling)
    feeds = {"x": random(3, 64), "a": random(64, 8), "b": random(8, 64)}
    want = original(model, feeds)[0]
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=r"'r' is 8 in 'a' and 4 in 'b'"):
        session.run(None, {**feeds, "b": random(4, 64)})
    np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4)
    assert session.placements()[0].backend == compiling


@needs_iree
@pytest.mark.parametrize("ops", ["LoRA", "DoRA"])
@pytest.mark.parametrize("level", [None, "x86-64-v3"])
def test_adapters_of_a_dynamic_rank_are_compiled(ops, level):
    """Without AVX-512, IREE refuses wide vectors for products over a dynamic dimension."""
    if level is not None and level not in cpu_levels():
        pytest.skip(f"this CPU does not have {level}")
    model = parse(f"{ops} of a dynamic rank", w=random(640, 640))
    names = ["a", "b"] if ops == "LoRA" else ["a", "b", "g"]
    session = session_on(model, *names, backend="iree", target_cpu=level)
    assert [(p.backend, p.reason) for p in session.placements()] == [("iree", None)]
    for rank in (4, 9):
        feeds = {"x": random(3, 640), "a": random(640, rank), "b": random(rank, 640)}
        feeds |= {"g": random(1, 640)} if "g" in names else {}
        want = original(model, feeds)[0]
        np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-3, atol=1e-3)


def test_onnxruntime_computes_sizes_that_require_broadcasting(compiling):
    model = parse("sum of two constants")
    session = opened(model, "a", "b", backend=compiling)
    for sizes in ((8, 8), (8, 1), (1, 8), (5, 5)):
        feeds = {"x": random(3, 64), "a": random(64, sizes[0]), "b": random(64, sizes[1])}
        want = original(model, feeds)[0]
        np.testing.assert_allclose(session.run(None, feeds)[0], want, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=r"'r' is 8 in 'a' and 3 in 'b'"):
        session.run(None, {**feeds, "a": random(64, 8), "b": random(64, 3)})


def test_onnxruntime_computes_constants_without_elements(compiling):
    model = parse("merged factors", w=random(64, 64))
    session = opened(model, "a", "b", backend=compiling)
    feeds = {"x": random(3, 64), "a": random(64, 0), "b": random(0, 64)}
    assert_same(session.run(None, feeds), original(model, feeds))


@pytest.mark.parametrize("backend", ["counting", pytest.param("iree", marks=needs_iree)])
def test_tokens_are_embedded_by_a_kernel(backend, compiled):
    """The session checks the indices before each call of the kernel."""
    model = parse(
        "embedded tokens",
        w=random(10, 8),
    )
    session = opened(model, "ids", backend=backend)
    feeds = {"x": random(3, 8), "ids": np.array([0, 9, -1, 3, -10])}
    np.testing.assert_allclose(
        session.run(None, feeds)[0], original(model, feeds)[0], rtol=1e-5, atol=1e-5
    )
    for index in (10, -11, 10**9):
        with pytest.raises(UsageError, match="an index in 'ids' is out of bounds for 10 rows"):
            session.run(None, {**feeds, "ids": np.array([0, index])})


def test_the_memory_of_half_precision_includes_float32_copies():
    for dtype, nbytes in (("float", 8), ("float16", 20)):
        model = storage.from_proto(parse(f"g ({dtype}[n] x) => ({dtype}[n] y) {{ y = Neg(x) }}"))
        assert demands(model).memory == [[nbytes, "n"]]


def test_the_memory_of_a_quotient_has_all_factors_of_the_size():
    model = parse("""g (float[n,n] x) => (float[1,1,m] y) <int64[3] s = {1, 1, -1}> {
        r = Reshape(x, s) y = MaxPool<kernel_shape = [4], strides = [4]>(r)
    }""")
    known = demands(storage.from_proto(model))
    assert known.reason is None
    assert {tuple(names) for _, *names in known.memory} >= {("n", "n")}
    assert ("n",) not in {tuple(names) for _, *names in known.memory}
