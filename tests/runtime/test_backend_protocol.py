"""Test that the built-in backends implement `onnxfold.runtime.backends.base.Backend`.

onnx-mlir is tested with a double of its compiler (see `onnx_mlir/compiler_double.py`). It is also
tested with the real compiler if there is a binary or a container engine with the image.
"""

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import psutil
import pytest
from double import use_double
from model_backend import run_model
from runtime_models import (
    adapter_feeds,
    at_once,
    bundle_of,
    decoder_feeds,
    original,
    parse,
    random,
    session_on,
    value_of,
)

from onnxfold.ir import storage
from onnxfold.runtime.backends.base import NAMES, Backend, Built, CompileError, create
from onnxfold.runtime.backends.kernel_check import Draw, check_kernel
from onnxfold.runtime.bundles.manifest import Kernel

# The output y has a dynamic shape. The input w is a weight of the kernel.
TEXT = """fold (float[n, 8] a, float[8] b, float[8, 4] w) => (float[n, 4] y, float[8] z) {
    t = Add(a, b)
    y = MatMul(t, w)
    z = Mul(b, c)
}"""
INPUTS = {"a": random(16, 8), "b": random(8, seed=1), "w": random(8, 4, seed=2)}
SECONDS = 120.0


def model() -> bytes:
    return parse(TEXT, c=random(8, seed=3)).SerializeToString()


def expected(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip("yz", run_model(model(), list(feeds.values())), strict=True))


BACKENDS = ["iree", "onnx-mlir", "onnx-mlir (double)"]


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request, tmp_path_factory) -> Iterator[Backend]:
    """Yield a backend, or skip the test with the reason why the backend cannot compile."""
    with pytest.MonkeyPatch.context() as patch:
        if "double" in request.param:
            use_double(tmp_path_factory.mktemp("double"), patch)
        made = create(request.param.removesuffix(" (double)"))
        reason = made.missing()
        if reason is not None:
            pytest.skip(reason)
        yield made


@pytest.fixture(scope="module")
def built(backend, tmp_path_factory) -> Built:
    target = tmp_path_factory.mktemp("kernel") / "0123abcd"
    return backend.compile(model(), target, seconds=SECONDS)


@pytest.fixture(scope="module")
def compiled(backend, built) -> Kernel:
    return Kernel(
        backend.name,
        outputs=["y", "z"],
        inputs=["a", "b"],
        weights=["w"],
        file=built.files[0].name,
        function=built.function,
        dtypes=["float32", "float32"],
        key=backend.key_of("hash"),
    )


@pytest.fixture(scope="module")
def folder(built) -> Path:
    return built.files[0].parent


@pytest.fixture
def kernel(backend, compiled, folder):
    return backend.load(compiled, folder, {"w": INPUTS["w"]})


def close(got, want) -> None:
    for name, array in want.items():
        value = got[name]
        value = value.numpy() if isinstance(value, ort.OrtValue) else value
        assert (value.dtype, value.shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(value, array, rtol=1e-4, atol=1e-5)


def test_create_returns_the_backend_of_a_name(backend):
    assert type(create(backend.name)) is type(backend)
    assert backend.name in NAMES


def test_the_key_contains_the_compiler_in_one_line(backend):
    assert backend.missing() is None
    maker = backend.key_of("one")["maker"]
    assert maker and "\n" not in maker


def test_a_key_depends_on_the_model_and_fits_this_machine(backend):
    key = backend.key_of("one")
    assert key == create(backend.name).key_of("one") != backend.key_of("two")
    assert all(isinstance(text, str) for pair in key.items() for text in pair)
    assert backend.unusable(key) is None


def compared(kernel: Kernel, folder: Path, source: onnx.ModelProto, *arrays) -> float:
    """Run a kernel in another process, and return the largest error relative to onnxruntime.

    Raises:
        CompileError: The error exceeds the tolerance, or the kernel fails.
    """
    inputs = [Draw("numbers around 0", [*arrays])]
    return check_kernel(kernel, folder, storage.from_proto(source), inputs, seconds=SECONDS)[0]


def test_a_compiled_kernel_is_checked_in_another_process(built, compiled, folder):
    assert built.files and all(path.is_file() for path in built.files)
    assert {path.parent for path in built.files} == {built.files[0].parent}
    assert built.files[0].name.startswith("0123abcd.")
    text = TEXT.replace(", float[8, 4] w)", ")")
    right, wrong = (parse(text, c=random(8, seed=3) + k, w=INPUTS["w"]) for k in (0, 1))
    assert compared(compiled, folder, right, INPUTS["a"], INPUTS["b"]) < 1e-4
    with pytest.raises(CompileError, match="the kernel's results are wrong"):
        compared(compiled, folder, wrong, INPUTS["a"], INPUTS["b"])


@pytest.mark.parametrize("rows", [16, 1, 7])
def test_a_kernel_takes_any_size_of_a_dynamic_dimension(kernel, rows):
    feeds = {**INPUTS, "a": random(rows, 8, seed=rows)}
    close(kernel({"a": feeds["a"], "b": feeds["b"]}), expected(feeds))


def test_a_kernel_takes_onnxruntime_values_and_any_layout(kernel):
    wide = random(8, 9, seed=5)
    feeds = {**INPUTS, "a": wide.T}
    values = {name: value_of(INPUTS[name]) for name in "ab"}
    close(kernel(values), expected(INPUTS))
    close(kernel({"a": wide.T, "b": INPUTS["b"]}), expected(feeds))


def test_a_kernel_takes_unpickled_arrays(kernel):
    feeds = pickle.loads(pickle.dumps({**INPUTS, "a": random(9, 8)}))
    assert feeds["a"].dtype.isbuiltin == 0
    close(kernel({"a": feeds["a"], "b": feeds["b"]}), expected(feeds))


def test_results_outlive_the_kernel(backend, compiled, folder):
    kernel = backend.load(compiled, folder, {"w": INPUTS["w"]})
    results = [kernel(INPUTS) for _ in range(3)]
    del kernel
    for result in results:
        close(result, expected(INPUTS))


def test_inputs_are_not_modified(kernel):
    given = {name: INPUTS[name].copy() for name in "ab"}
    kernel(given)
    assert all(given[name].tobytes() == INPUTS[name].tobytes() for name in "ab")


def test_a_kernel_is_called_from_several_threads(kernel):
    def work(seed: int) -> None:
        feeds = {**INPUTS, "a": random(5 + seed, 8, seed=seed)}
        want = expected(feeds)
        for _ in range(20):
            close(kernel(feeds), want)

    at_once(work, range(4))


def test_a_missing_input_is_an_error(kernel):
    with pytest.raises(KeyError):
        kernel({"a": INPUTS["a"]})
    close(kernel(INPUTS), expected(INPUTS))


def test_the_reason_not_to_compile_a_model_is_one_line(backend, tmp_path):
    unknown = parse("fold (float[2] x) => (float[2] y) { y = local.Frobnicate(x) }")
    # The real onnx-mlir compiles unknown ops, so only the check of the kernel fails.
    for content in (b"this is no model", unknown.SerializeToString()):
        with pytest.raises(CompileError) as caught:
            built = backend.compile(content, tmp_path / "0123", seconds=SECONDS)
            kernel = Kernel(backend.name, ["y"], ["x"], [], built.files[0].name, built.function)
            compared(kernel, tmp_path, unknown, random(2))
        assert str(caught.value) and "\n" not in str(caught.value)


def test_the_error_of_a_damaged_kernel_is_one_line(backend, compiled, tmp_path):
    for content in (b"", b"nothing of the kind" * 100):
        (tmp_path / compiled.file).write_bytes(content)
        with pytest.raises(CompileError) as caught:
            backend.load(compiled, tmp_path, {"w": INPUTS["w"]})
        assert str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(CompileError, match="No such file"):
        backend.load(compiled, tmp_path / "gone", {"w": INPUTS["w"]})


def test_a_compiler_is_stopped_after_the_time_limit(backend, tmp_path):
    with pytest.raises(CompileError, match=r"longer than 0\.01 s"):
        backend.compile(model(), tmp_path / "k", seconds=0.01)


def test_a_kernel_for_another_machine_is_not_used(backend):
    key = {**backend.key_of("one"), "cpu": "z80", "machine": "z80"}
    assert backend.unusable(key)


def test_dump_writes_the_stages_of_compilation(backend, tmp_path):
    backend.dump(model(), tmp_path, seconds=SECONDS)
    written = [*tmp_path.iterdir()]
    assert written
    for path in written:
        if path.suffix == ".mlir":
            assert "module" in path.read_text()


def test_a_model_of_common_ops_is_supported(backend):
    import onnx_ir as ir

    assert backend.supported(ir.from_proto(onnx.load_from_string(model()))) == []


@pytest.mark.parametrize("name", ["adapter", "decoder"])
def test_a_session_runs_the_kernels_of_a_split_model(backend, name, request, tmp_path):
    source = request.getfixturevalue(name)
    constants, feeds = {
        "adapter": (("a", "b", "scale"), [adapter_feeds(k) for k in range(2)]),
        "decoder": (("states", "mask"), [decoder_feeds(k, positions=9 + k) for k in range(2)]),
    }[name]
    bundle = bundle_of(source, tmp_path, *constants, backend=backend.name)
    assert {k.reason for k in bundle.manifest.kernels} <= {None}
    session = session_on(bundle, backend=backend.name)
    assert {p.backend for p in session.placements()} == {backend.name}
    for given in feeds:
        got = session.run(None, given)[0]
        np.testing.assert_allclose(got, original(source, given)[0], rtol=1e-4, atol=1e-4)
    assert session.fold_statistics().folds == len(feeds) * len(bundle.manifest.groups)
    assert {p.backend for p in session.placements()} == {backend.name}


def test_ten_thousand_calls_leak_nothing(kernel):
    feeds = {"a": random(500, 8), "b": INPUTS["b"]}
    process = psutil.Process()
    for k in range(10_500):
        if k == 500:
            before = process.memory_info().rss
        kernel(feeds)
    assert process.memory_info().rss - before < 4 << 20  # the results of 10,000 calls take 80 MB
