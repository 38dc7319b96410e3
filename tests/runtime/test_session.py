import gc
import os
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import psutil
import pytest
from processes import python
from runtime_models import (
    adapter_feeds,
    assert_same,
    at_once,
    bundle_of,
    decoder_feeds,
    needs_iree,
    options,
    original,
    parse,
    random,
    run,
    session_on,
    value_of,
)

from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session
from onnxfold.support.errors import ModelError, OnnxFoldError, UsageError

NAMES = ("states", "mask")


@pytest.fixture
def bundle(decoder, tmp_path):
    return bundle_of(decoder, tmp_path / "bundle", *NAMES)


@pytest.fixture
def feeds() -> dict[str, np.ndarray]:
    return decoder_feeds()


@pytest.fixture
def session(bundle) -> Session:
    return open_session(bundle)


def open_session(bundle, **arguments):
    """Open a session that computes the bits of the original.

    The session has its own cache unless ``arguments`` contain a cache.
    """
    return session_on(bundle, backend="onnxruntime", **arguments)


def test_the_first_run_folds_and_later_ones_do_not(decoder, session, feeds):
    for step in range(3):
        feeds["x"] = random(2, 3 + step, 64, seed=step)
        assert_same(session.run(None, feeds), original(decoder, feeds))
    assert session.fold_statistics().folds == 2  # one for each group of constants
    assert session.cache_statistics().entries == 2


def test_constants_may_be_fed_only_once(decoder, session, feeds):
    session.run(None, feeds)
    assert_same(session.run(["y"], {"x": feeds["x"]}), original(decoder, feeds))


def test_a_constant_that_was_never_fed_is_an_error(session, feeds):
    del feeds["mask"]
    with pytest.raises(UsageError, match="'mask' has no value yet"):
        session.run(None, feeds)


def test_new_values_are_folded_and_old_ones_are_cached(decoder, session):
    one = decoder_feeds(1)
    two = decoder_feeds(2, positions=31)
    for feeds in (one, two, one, two):
        assert_same(session.run(None, feeds), original(decoder, feeds))
    assert session.fold_statistics().folds == 4


def test_equal_values_in_another_array_are_the_same_constant(session, feeds):
    session.run(None, feeds)
    session.run(None, {name: array.copy() for name, array in feeds.items()})
    assert session.fold_statistics().folds == 2


def test_only_tensors_of_a_changed_constant_are_folded_again(decoder, session, feeds):
    session.run(None, feeds)
    feeds["mask"] = 1 - feeds["mask"]
    assert_same(session.run(None, feeds), original(decoder, feeds))
    assert session.fold_statistics().folds == 3
    feeds["mask"] = 1 - feeds["mask"]
    given = {"x": feeds["x"], "mask": feeds["mask"]}
    assert_same(session.run(None, given), original(decoder, feeds))


def test_feeds_may_be_noncontiguous_arrays(decoder, session, feeds):
    want = original(decoder, feeds)
    feeds["states"] = np.asfortranarray(feeds["states"])
    assert_same(session.run(None, feeds), want)
    assert_same(session.run(None, feeds), want)


def test_feeds_may_be_onnxruntime_values(decoder, session, feeds):
    values = {name: value_of(array) for name, array in feeds.items()}
    assert_same(session.run(None, values), original(decoder, feeds))
    results = session.run_with_ort_values(None, values)
    assert_same([result.numpy() for result in results], original(decoder, feeds))
    assert session.fold_statistics().folds == 2


def test_cached_tensors_are_bound_without_a_copy(session):
    handle = session.fold({name: decoder_feeds()[name] for name in NAMES})
    again = session.fold({name: decoder_feeds()[name] for name in NAMES})
    pointers = [
        {name: value.data_ptr() for name, value in h.tensors().items()} for h in (handle, again)
    ]
    assert pointers[0] == pointers[1]


def test_threads_alternate_between_handles_and_feeds(decoder, session):
    tenants = [decoder_feeds(seed, positions=20 + seed) for seed in range(8)]
    want = [original(decoder, feeds) for feeds in tenants]
    handles = [session.fold({name: feeds[name] for name in NAMES}) for feeds in tenants]

    def work(turn: int) -> None:
        k = turn % 8
        x = {"x": tenants[k]["x"]}
        assert_same(session.run(None, tenants[k]), want[k])
        got = handles[k].run(None, x) if turn % 2 else session.run(None, x, handle=handles[k])
        assert_same(got, want[k])

    at_once(work, range(160), 8)
    assert session.fold_statistics().folds == 16


def test_many_threads_fold_once(decoder, session, feeds):
    want = original(decoder, feeds)
    barrier = threading.Barrier(64)

    def work(_: int) -> None:
        barrier.wait()
        assert_same(session.run(None, feeds), want)

    at_once(work, range(64), 64)
    assert session.fold_statistics().folds == 2


def test_the_cache_keeps_its_limit(bundle):
    one = decoder_feeds()
    size = open_session(bundle).fold({name: one[name] for name in NAMES}).nbytes
    session = open_session(bundle, cache=None, max_cache_bytes=2 * size + 100)
    for seed in range(5):
        feeds = decoder_feeds(seed)
        session.run(None, feeds)
        assert session.cache_statistics().bytes <= 2 * size + 100
    statistics = session.cache_statistics()
    assert statistics.evictions >= 4
    assert statistics.peak_bytes <= 2 * size + 100


def test_without_room_in_the_cache_the_last_fold_is_still_used(decoder, bundle, feeds):
    session = open_session(bundle, cache=FoldCache(max_bytes=0))
    for _ in range(3):
        assert_same(session.run(None, feeds), original(decoder, feeds))
    assert session.fold_statistics().folds == 2
    assert session.cache_statistics().too_large == 2


def test_cache_keys_depend_on_content(bundle, feeds, tmp_path):
    """A changed bit requires another fold. Equal values in other arrays and sessions do not."""
    for cache in (FoldCache(), FoldCache(tmp_path / "folds")):
        session, other = (open_session(bundle, cache=cache) for _ in range(2))
        session.run(None, feeds)
        changed = {**feeds, "states": feeds["states"].copy()}
        changed["states"].view(np.uint32)[0, 0, 0] ^= 1
        session.run(None, changed)
        other.run(None, {name: array.copy() for name, array in feeds.items()})
        other.run(None, changed)
        assert session.fold_statistics().folds == 3
        assert other.fold_statistics().folds == 0


def test_sessions_share_a_cache(decoder, bundle, feeds):
    cache = FoldCache()
    sessions = [open_session(bundle, cache=cache) for _ in range(2)]
    for session in sessions:
        assert_same(session.run(None, feeds), original(decoder, feeds))
    assert [s.fold_statistics().folds for s in sessions] == [2, 0]
    assert cache.statistics().hits == 2


@pytest.mark.parametrize("entry", ["qdqisint8allowed", "disable_quant_qdq", "threads"])
def test_sessions_with_options_that_change_bits_share_no_folds(bundle, feeds, entry):
    cache = FoldCache()
    other = options()
    other.add_session_config_entry(f"session.{entry}", "1")
    other.intra_op_num_threads = 3 if entry == "threads" else 1
    folds = []
    for own in (options(), other, other):
        session = open_session(bundle, cache=cache, sess_options=own)
        session.run(None, feeds)
        folds.append(session.fold_statistics().folds)
    assert folds == [2, 2, 0]


def test_waiting_for_a_fold_that_fails_is_no_hit():
    cache = FoldCache()
    asked = threading.Event()

    def make():
        asked.set()
        time.sleep(0.1)  # meanwhile the other thread requests the key and waits
        raise MemoryError

    def ask(waits):
        if waits:
            asked.wait()
        with pytest.raises(MemoryError):
            cache.get("key", make)

    at_once(ask, [True, False])
    assert (cache.statistics().hits, cache.statistics().misses) == (0, 2)


def test_a_specialized_session_computes_each_setting(decoder, bundle):
    session = open_session(bundle, specialize=True)
    for seed in (0, 1, 0):
        feeds = decoder_feeds(seed)
        assert_same(session.run(None, feeds), original(decoder, feeds))
    assert_same(session.run(None, {"x": feeds["x"]}), original(decoder, feeds))
    handle = session.fold({name: feeds[name] for name in NAMES})
    assert_same(handle.run(None, {"x": feeds["x"]}), original(decoder, feeds))
    assert session.fold_statistics().folds == 4


def test_entry_may_read_a_runtime_constant():
    model = parse("read by both")
    for specialize in (False, True):
        session = session_on(model, "r", specialize=specialize)
        for seed in (1, 2):
            feeds = {"x": random(24, 24), "r": random(24, 24, seed=seed)}
            assert_same(session.run(None, feeds), original(model, feeds))
            assert_same(session.run(None, {"x": feeds["x"]}), original(model, feeds))


def test_a_session_splits_a_model(adapter):
    session = session_on(adapter, "a", "b", "scale")
    for seed in range(3):
        feeds = adapter_feeds(seed)
        assert_same(session.run(None, feeds), original(adapter, feeds))


def test_an_omitted_overridable_input_has_its_default_value(tmp_path):
    model = parse("overridable", w=random(64, 64))
    session = session_on(model, overridable=True)
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [i.name for i in session.get_overridable_initializers()] == ["w"]
    feeds = {"x": random(64, 64)}
    assert_same(session.run(None, feeds), original(model, feeds))
    feeds["w"] = random(64, 64, seed=5)
    assert_same(session.run(None, feeds), original(model, feeds))
    of_w = session.io_binding()
    del feeds["w"]
    assert_same(session.run(None, feeds), original(model, feeds))
    assert of_w is not session.io_binding()


def test_constants_may_have_types_that_numpy_lacks():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    session = session_on(parse("a cast of bfloat16"), "r")
    r = random(64, 64).astype(ml_dtypes.bfloat16)
    x = random(64, 64)
    for _ in range(2):
        got = session.run(None, {"x": x, "r": r})[0]
        assert np.allclose(got, x + np.exp(r.astype(np.float32)), rtol=1e-5, atol=1e-5)
    assert session.fold_statistics().folds == 1


def test_a_session_has_the_description_of_the_original(decoder, session):
    plain = ort.InferenceSession(decoder.SerializeToString(), options())
    for got, want in zip(session.get_inputs(), plain.get_inputs(), strict=True):
        assert (got.name, got.type, got.shape) == (want.name, want.type, want.shape)
    assert [o.name for o in session.get_outputs()] == [o.name for o in plain.get_outputs()]
    assert session.get_providers() == plain.get_providers()
    assert session.get_provider_options() == plain.get_provider_options()
    assert session.get_session_options().intra_op_num_threads == 1
    assert session.get_modelmeta() is not None
    assert {p.backend for p in session.placements()} == {"onnxruntime"}


def test_wrong_arguments_are_errors(bundle, tmp_path, session, feeds):
    session.run(None, feeds)
    with pytest.raises(UsageError, match=r"no input has the name 'mass'; did you mean 'mask'\?"):
        session.run(None, {"x": feeds["x"], "mass": feeds["mask"]})
    handle = session.fold({n: v for n, v in feeds.items() if n != "x"})
    for each in (session, handle):
        with pytest.raises(UsageError, match="the feed lacks the input 'x'"):
            each.run(None, {})
        with pytest.raises(UsageError, match="expected a mapping of inputs by name, got NoneType"):
            each.run(None, None)
        with pytest.raises(UsageError, match="no input has the name 1"):
            each.run_with_ort_values(None, {1: feeds["x"]})
    with pytest.raises(UsageError, match=r"constants must be .*, got None"):
        session.fold(None)
    with pytest.raises(UsageError, match="are fixed: remove runtime_constants"):
        open_session(bundle, runtime_constants=["x"])
    with pytest.raises(ModelError, match="not a bundle"):
        Session(tmp_path)
    with pytest.raises(UsageError, match=r"source must be str or PathLike.*, got 3"):
        Session(3)
    with pytest.raises(UsageError, match="must be created by io_binding"):
        session.run_with_iobinding(session.entry.io_binding())
    with pytest.raises(UsageError, match="must be created by fold"):
        session.run(None, {"x": feeds["x"]}, handle=3)


def test_a_fold_that_fails_can_be_tried_again(decoder, bundle, session, feeds):
    wrong = {**feeds, "states": random(2, 50, 63)}
    with pytest.raises(Exception, match="states"):
        session.run(None, wrong)
    assert_same(session.run(None, feeds), original(decoder, feeds))


def outputs_without(modules: list[str], folder: Path, arguments: str = "'b'") -> str:
    """Run a session in a process that cannot import some modules, and return the output.

    The output is the shape of the first result, and the backend of the first component.

    Args:
        modules: The names of the modules that cannot be imported.
        folder: The working directory of the process. It contains the feeds in ``feeds.npz``.
        arguments: Python code for the arguments of `Session`.
    """
    code = f"""if True:
        import os, sys
        sys.modules.update(dict.fromkeys(sys.argv[2].split()))
        import numpy as np
        import onnxfold
        os.chdir(sys.argv[1])
        session = onnxfold.Session({arguments})
        with np.load("feeds.npz") as feeds:
            print(session.run(None, dict(feeds))[0].shape, session.placements()[0].backend)
    """
    return python("-c", code, folder, " ".join(modules))


def test_a_bundle_needs_onnxruntime_only(adapter, tmp_path):
    bundle_of(adapter, tmp_path / "b", "a", "b", "scale")
    np.savez(tmp_path / "feeds.npz", **adapter_feeds())
    modules = ["onnx", "onnx_ir", "click", "rich", "ml_dtypes"]
    assert outputs_without(modules, tmp_path) == "(5, 64) onnxruntime\n"


@needs_iree
def test_a_process_can_end_while_it_holds_kernels(adapter, tmp_path):
    onnx.save(adapter, tmp_path / "m.onnx")
    np.savez(tmp_path / "feeds.npz", **adapter_feeds())
    arguments = "'m.onnx', runtime_constants=['a', 'b', 'scale'], backend='iree'"
    assert outputs_without([], tmp_path, arguments) == "(5, 64) iree\n"


def test_kernels_need_their_backend_only(compiled, tmp_path, monkeypatch):
    """The kernel has no weights. onnx-ir would read weights from runtime_fold."""
    model = parse(
        "g (float[n, 64] x, float[64, 4] a, float[4, 64] b) => (float[n, 64] y) {"
        "ab = MatMul(a, b) y = MatMul(x, ab) }"
    )
    constants = ["a", "b"]
    bundle_of(model, tmp_path / "b", *constants, backend="a fast one")
    np.savez(tmp_path / "feeds.npz", x=random(5, 64), a=random(64, 4), b=random(4, 64))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{Path(__file__).parent}")
    modules = [
        "onnx",
        "onnx_ir",
        "sympy",
        "google.protobuf",
        "onnxfold.ir.storage",
        "click",
        "rich",
    ]
    assert outputs_without(modules, tmp_path) == "(5, 64) a fast one\n"


def test_a_kernel_that_fails_is_replaced_unless_the_backend_is_strict(
    compiled, adapter, monkeypatch, caplog
):
    names = ("a", "b", "scale")
    backend = "a slow one"
    feeds = adapter_feeds()
    strict, lenient = (
        session_on(adapter, *names, backend=backend, strict_backend=k) for k in (True, False)
    )
    monkeypatch.setenv("FAILS", "1")
    assert_same(lenient.run(None, feeds), original(adapter, feeds))
    assert "failed, so onnxruntime replaces it: the device is gone" in caplog.text
    assert lenient.placements()[0].backend == "onnxruntime"
    with pytest.raises(OnnxFoldError, match="'merged': a slow one failed: the device is"):
        strict.run(None, feeds)
    monkeypatch.delenv("FAILS")
    assert_same(strict.run(None, feeds), original(adapter, feeds))
    assert strict.placements()[0].backend == backend


def test_onnxruntime_folds_misfits_of_a_kernel_unless_the_backend_is_strict(compiled):
    model = parse(
        "g (float[n] x, float[k] c) => (float[n] y){ m = ReduceSum<keepdims = 0>(c) y = Add(x, m) }"
    )
    feeds = {"x": random(3), "c": random(0)}

    own = {"runtime_constants": ["c"], "backend": "counting"}
    assert_same(run(model, feeds, **own)[0], [feeds["x"]])
    with pytest.raises(OnnxFoldError, match=r"'m': counting failed: 'c' of shape \(0,\)"):
        run(model, feeds, strict_backend=True, **own)


def test_a_deleted_session_is_freed(bundle, feeds):
    session = open_session(bundle)
    session.run(None, feeds)
    reference = weakref.ref(session)
    del session
    gc.collect()
    assert reference() is None


@pytest.mark.slow
def test_ten_thousand_runs_leak_nothing(bundle):
    session = open_session(bundle, cache=None, max_cache_bytes=4 << 20)
    tenants = [decoder_feeds(seed, positions=100) for seed in range(40)]
    handle = session.fold({name: tenants[0][name] for name in NAMES})

    def some(count: int) -> None:
        for k in range(count):
            feeds = tenants[k % 40] if k % 10 == 0 else tenants[0]
            session.run(None, feeds)
            handle.run(None, {"x": feeds["x"]})

    some(1000)
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    some(10_000)
    gc.collect()
    assert process.memory_info().rss - before < 4 << 20


def test_inputs_may_declare_negative_sizes():
    """PaddlePaddle writes negative numbers for unknown sizes."""
    text = "g (float[1, 3] x, float[1, 3] c) => (float[n, 3] y) { t = Tanh (c) y = Add (x, t) }"
    model = parse(text)
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].dim_value = -1
    session = session_on(model, "c")
    for rows in (1, 4):
        feeds = {"x": random(rows, 3), "c": random(rows, 3)}
        assert_same(session.run(None, feeds), original(model, feeds))
