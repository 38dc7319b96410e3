"""Test which values a runtime constant accepts, and that new content is folded again."""

import pickle
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from reference_session import reference_session
from runtime_models import assert_same, original, parse, random, session_on, value_of

from onnxfold.support.errors import UsageError


def of(text: str, *names: str, **arguments) -> tuple:
    model = parse(text)
    return model, session_on(model, *names, **arguments)


def refillable() -> dict[str, tuple[object, np.ndarray]]:
    """Return values for r, by name, each with a writable array that shares the value's memory."""
    plain, view, fortran, swapped = (random(24, 24, seed=k) for k in range(4))
    seen = view[:]
    seen.flags.writeable = False
    fortran = np.asfortranarray(fortran)
    swapped = swapped.astype(">f4")
    wide = random(48, 48)
    held = random(24, 24)
    return {
        "array": (plain, plain),
        "read-only view": (seen, view),
        "columns": (fortran, fortran),
        "big end first": (swapped, swapped),
        "part": (wide[::2, ::2], wide[::2, ::2]),
        "onnxruntime's": (value_of(held), held),
    }


@pytest.mark.parametrize("form", list(refillable()))
@pytest.mark.parametrize("specialize", [False, True])
def test_an_overwritten_value_is_folded_again(form, specialize):
    model, session = of("read by both", "r", specialize=specialize)
    given, memory = refillable()[form]
    x = random(24, 24, seed=9)
    rng = np.random.default_rng(0)

    def want():
        return original(model, {"x": x, "r": memory.astype(np.float32)})

    handle = session.fold({"r": given})
    of_handle = want()
    for _ in range(8):
        assert_same(session.run(None, {"x": x, "r": given}), want())
        assert_same(session.fold({"r": given}).run(None, {"x": x}), want())
        before = want()
        place = tuple(rng.integers(0, 24, 2))
        memory[place] = np.nextafter(memory[place], 9, dtype=np.float32)  # changes one bit or more
        assert_same(session.run(None, {"x": x}), before)  # uses the last value of r
    assert_same(handle.run(None, {"x": x}), of_handle)
    folds = session.fold_statistics().folds
    session.run(None, {"x": x, "r": given})
    for _ in range(3):
        session.run(None, {"x": x, "r": given})
    assert session.fold_statistics().folds == folds + 1


def test_another_sign_of_zero_or_payload_of_nan_is_folded_again():
    session = of("g (float[n] x, float[n] r) => (float[n] y) { e = Exp(r) y = Add(x, e) }", "r")[1]
    r = np.zeros(24, np.float32)
    x = np.zeros(24, np.float32)
    for word in (0, 0x80000000, 0x7FC00000, 0x7FC00001):
        r.view(np.uint32)[-1] = word
        session.run(None, {"x": x, "r": r})
    assert session.fold_statistics().folds == 4


def test_an_omitted_constant_has_its_last_value_after_its_array_was_overwritten():
    model, session = of("a power", "a", "b")
    feeds = {"x": random(4), "a": random(4, seed=1) + 3, "b": random(4, seed=2)}
    session.run(None, feeds)
    a = feeds["a"].copy()
    feeds["a"][...] = 9
    b = random(4, seed=3)
    got = session.run(None, {"x": feeds["x"], "b": b})
    assert_same(got, original(model, {"x": feeds["x"], "a": a, "b": b}))


@pytest.mark.parametrize("form", ["owner", "view", "bytes", "mapped"])
def test_a_read_only_array_is_compared(form, tmp_path):
    """The owner of the memory can set ``writeable`` again, and other arrays may share it."""
    model, session = of("read by both", "r")
    memory = bytearray(random(24, 24, seed=1).tobytes())
    owner = np.frombuffer(memory, np.float32).reshape(24, 24)
    given = {
        "owner": owner,
        "view": owner[:],
        "bytes": np.frombuffer(memoryview(memory).toreadonly(), np.float32),
    }
    if form == "mapped":
        file = np.memmap(tmp_path / "r", np.float32, "w+", shape=(24, 24))
        owner = file
        r = np.memmap(tmp_path / "r", np.float32, "r", shape=(24, 24))
    else:
        r = given[form].reshape(24, 24)
    x = random(24, 24)
    for seed in range(4):
        owner.flags.writeable = True
        owner[...] = random(24, 24, seed=seed // 2)
        r.flags.writeable = False
        owner.flags.writeable = False
        folds = session.fold_statistics().folds
        assert_same(session.run(None, {"x": x, "r": r}), original(model, {"x": x, "r": r}))
        assert session.fold_statistics().folds == folds + (seed % 2 == 0)


_RANDOM = """g (float[n, 16] x, float[16, 16] a, float[8] b, float[16, 16] c, string[2] s)
    => (float[n, 16] y, string[2] t)
    <float[16, 16] c = {CONSTANT}> {
    ea = Exp(a) ec = Exp(c) m = MatMul(ea, ec) sum = ReduceSum<keepdims = 0>(b) eb = Exp(sum)
    k = Mul(m, eb) p = MatMul(x, k) y = MatMul(p, c) u = StringConcat(s, s) t = Identity(u)
}"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["copies", "in place", "read-only"])
def test_random_sequences_of_feeds(kind, seed):
    """Omit values, overwrite them, or feed them unchanged, at random.

    The reference run gets the last value of each constant, and no value for c if c is omitted.
    """
    rng = np.random.default_rng(seed)
    default = ", ".join("0.5" for _ in range(256))
    model = parse(_RANDOM.replace("CONSTANT", default))
    session = session_on(model, "a", "b", "c", "s", overridable=True)
    reference = reference_session(model)

    def draw(name: str) -> np.ndarray:
        if name == "s":
            return rng.choice(np.array(["a", "b", "\N{SNOWMAN}"], object), 2)
        shape = (8,) if name == "b" else (16, 16)
        return rng.standard_normal(shape, np.float32)

    arrays = {name: draw(name) for name in "abcs"}
    last: dict[str, np.ndarray] = {}  # copies of the last values
    for step in range(40):
        fed = {}
        for name, array in arrays.items():
            if rng.random() < 0.3 and (name == "c" or step):
                continue  # omitted
            if rng.random() < 0.4:
                array.flags.writeable = True
                array[...] = draw(name)
                array.flags.writeable = kind != "read-only"
            fed[name] = array.copy() if kind == "copies" else array
        last |= {name: array.copy() for name, array in fed.items()}
        if "c" not in fed:
            last.pop("c", None)
        x = {"x": rng.standard_normal((int(rng.integers(1, 4)), 16), np.float32)}
        y, texts = session.run(None, {**x, **fed})
        expected, expected_texts = reference.run(None, {**x, **last})
        assert_same([y], [expected])
        assert texts.tolist() == expected_texts.tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a,
        lambda a: a.astype("U"),
        lambda a: np.repeat(a, 2)[::2],
        lambda a: np.char.encode(a.astype("U"), "utf-8"),
        pytest.param(
            lambda a: a.astype("T"),
            marks=pytest.mark.skipif(np.__version__ < "2", reason="NumPy 2 has such strings"),
        ),
    ],
    ids=["objects", "of one length", "with gaps", "bytes", "of any length"],
)
def test_a_value_may_have_strings(make: Callable):
    model, session = of("repeated strings", "s", "r")
    strings = make(np.array(["a", "\N{SNOWMAN}"], object))
    feeds = {"s": strings, "x": random(2), "r": random(2, seed=1)}

    def run(feeds):
        (words, numbers) = session.run(None, feeds)
        return words.tolist(), numbers.tobytes()

    first = run(feeds)
    assert first[0] == ["aa", "\N{SNOWMAN}" * 2]
    assert first[1] == original(model, {**feeds, "s": strings.astype(object)})[1].tobytes()
    handle = session.fold({"s": strings, "r": feeds["r"]})
    strings[0] = "z"
    assert run({"x": feeds["x"]}) == first
    assert run(feeds)[0][0] == "zz"
    assert handle.run(["e"], {"x": feeds["x"]})[0][0] == "aa"
    words, numbers = session.run_with_ort_values(None, {"x": value_of(feeds["x"])})
    assert (words.numpy().tolist(), numbers.numpy().tobytes()) == (["zz", first[0][1]], first[1])
    feeds["s"] = words  # an OrtValue
    assert run(feeds)[0] == ["zzzz", "\N{SNOWMAN}" * 4]
    binding = session.io_binding(handle)
    binding.bind_cpu_input("x", feeds["x"])
    for name in ("e", "y"):
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    words, numbers = (value.numpy() for value in binding.get_outputs())
    assert (words.tolist(), numbers.tobytes()) == first


def test_numbers_may_be_folded_from_strings():
    """runtime_fold computes the indices of strings with Unique."""
    model, session = of("places of strings", "s")
    for letters in ("abacb", "zzzzz", "abacb"):
        feeds = {"s": np.array(list(letters), object), "x": np.array([7])}
        assert_same(session.run(None, feeds), original(model, feeds))


@pytest.mark.parametrize("specialize", [False, True])
def test_a_value_may_have_no_elements(specialize):
    model, session = of("nothing", "r", "s", specialize=specialize)
    for rows in (0, 2, 0):
        feeds = {"x": random(rows, 3), "r": random(rows, 3, seed=1), "s": np.arange(rows)}
        assert_same(session.run(None, feeds), original(model, feeds))


@pytest.mark.parametrize("specialize", [False, True])
def test_a_value_may_be_a_sequence(specialize):
    maker = reference_session(parse("a sequence"))
    model, session = of("read from a sequence", "s", specialize=specialize)
    for seed in (1, 2):
        (s,) = maker.run_with_ort_values(None, {"a": value_of(random(4, seed=seed))})
        feeds = {"x": random(4), "s": s}
        for _ in range(2):
            assert_same(session.run(None, feeds), original(model, feeds))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("specialize", [False, True])
def test_a_value_may_have_numbers_of_four_bits(dtype, specialize):
    _, session = of(
        f"""g ({dtype}[k] q, float[n] x) => (float[n] y) {{
            wide = Cast<to = 1>(q)
            sum = ReduceSum<keepdims = 0>(wide)
            e = Exp(sum)
            y = Add(x, e)
        }}""",
        "q",
        specialize=specialize,
        level=0,
    )
    x = random(3)
    for numbers in ([1, 0, 1], [1, 1, 1, 0, 1], [1, 0, 1], []):
        q = np.array(numbers).astype(getattr(ml_dtypes, dtype))
        want = x + np.exp(np.float32(sum(numbers)))
        np.testing.assert_allclose(session.run(["y"], {"q": q, "x": x})[0], want, rtol=1e-6)
        np.testing.assert_allclose(session.fold({"q": q}).run(["y"], {"x": x})[0], want, rtol=1e-6)
    assert session.fold_statistics().folds == 3


def test_a_value_may_be_an_unpickled_array():
    model, session = of("read by both", "r")
    feeds = pickle.loads(pickle.dumps({"x": random(24, 24), "r": random(24, 24, seed=1)}))
    assert feeds["r"].dtype.isbuiltin == 0
    assert_same(session.run(None, feeds), original(model, feeds))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1.0] * 24] * 24, "'r': expected an array or an OrtValue, got list"),
        (np.float32(1), "'r': .* got float32"),
        (None, "'r': .* got NoneType"),
        (random(24, 23), r"'r' must be float32\[24,24\], not float32\[24,23\]"),
        (random(24), r"'r' must be float32\[24,24\], not float32\[24\]"),
        (random(24, 0), r"not float32\[24,0\]"),
        (random(24, 24).astype(np.float64), r"not float64\[24,24\]"),
        (value_of(np.zeros((24, 24), np.int64)), r"not int64\[24,24\]"),
        (random(24, 24).astype(str), r"not string\[24,24\]"),
        (random(24, 24).astype(complex), "does not support arrays of complex128"),
    ],
)
@pytest.mark.parametrize("specialize", [False, True])
def test_a_value_of_another_type_or_shape_is_refused(value, message, specialize):
    model, session = of("read by both", "r", specialize=specialize)
    feeds = {"x": random(24, 24), "r": random(24, 24, seed=1)}
    want = original(model, feeds)
    for _ in range(2):  # before and after the first valid run
        with pytest.raises(UsageError, match=message):
            session.run(None, {**feeds, "r": value})
        with pytest.raises(UsageError, match=message):
            session.fold({"r": value})
        assert_same(session.run(None, feeds), want)
