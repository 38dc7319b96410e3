import shutil
import sys
from importlib import metadata

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from reference_session import OLD_ONNXRUNTIME
from runtime_models import (
    adapter_feeds,
    assert_runs,
    bundle_of,
    needs_iree,
    options,
    original,
    parse,
    random,
    run,
    session_on,
)

from onnxfold.ir import storage
from onnxfold.runtime.backends.compilation import kernel_folder
from onnxfold.runtime.backends.component import prepare
from onnxfold.runtime.bundles.bundle import open_bundle
from onnxfold.runtime.split_model import split
from onnxfold.support.errors import UsageError
from onnxfold.support.system import cpu_levels, cpus


@needs_iree
def test_options_are_part_of_the_key_and_passed_to_the_compiler(adapter, tmp_path):
    arguments = {"runtime_constants": ["a", "b", "scale"], "backend": "iree", "fsync": False}
    flag = "--iree-opt-level=O1"
    bundle = split(adapter, tmp_path / "b", backend_options=[flag], **arguments)
    (kernel,) = bundle.manifest.kernels
    assert kernel.reason is None
    assert "--iree-opt-level=O2" not in kernel.key["flags"] and flag in kernel.key["flags"]
    assert run(bundle, adapter_feeds())[1][0].backend == "iree"


@needs_iree
@pytest.mark.skipif("x86-64-v2" not in cpu_levels(), reason="the CPU is no x86-64 with SSE 4")
def test_a_kernel_runs_on_every_cpu_of_its_level(adapter, tmp_path, monkeypatch, caplog):
    names = ("a", "b", "scale")
    feeds = adapter_feeds()
    default = bundle_of(adapter, tmp_path / "default", *names, backend="iree")
    assert default.manifest.kernels[0].key["cpu"] == cpu_levels()[-1]
    bundle = bundle_of(adapter, tmp_path / "b", *names, backend="iree", target_cpu="x86-64-v2")
    (kernel,) = bundle.manifest.kernels
    assert kernel.key["cpu"] == "x86-64-v2"
    assert "--iree-llvmcpu-target-cpu=x86-64-v2" in kernel.key["flags"].split()
    flags = cpus._cpu_flags() - {"avx2", "avx512f"} | {"a_mitigation"}
    monkeypatch.setattr(cpus, "_cpu_flags", lambda: flags)
    for function in (cpus.cpu_levels, cpus.cpu_features):
        function.cache_clear()
    try:
        assert_runs(bundle, adapter, feeds, "iree")
        assert not caplog.text
        place = assert_runs(default, adapter, feeds, "onnxruntime", bound=0)[0]
        reason = "its kernel needs x86-64-v4, and this CPU has x86-64-v2"
        assert place.reason == reason.replace("x86-64-v4", default.manifest.kernels[0].key["cpu"])
        assert f"onnxruntime replaces the kernels for merged: {place.reason}" in caplog.text
        with pytest.raises(UsageError, match="target_cpu x86-64-v3: compiled kernels are checked"):
            split(adapter, tmp_path / "c", runtime_constants=names, target_cpu="x86-64-v3")
    finally:
        monkeypatch.undo()
        for function in (cpus.cpu_levels, cpus.cpu_features):
            function.cache_clear()


@needs_iree
def test_code_for_the_host_runs_on_cpus_with_the_same_features(adapter, tmp_path):
    given = ["--iree-llvmcpu-target-cpu=host"]
    names = ("a", "b", "scale")
    bundle = bundle_of(adapter, tmp_path, *names, backend="iree", backend_options=given)
    assert bundle.manifest.kernels[0].key["cpu"] == cpus.cpu_features()
    assert_runs(bundle, adapter, adapter_feeds(), "iree")


def test_the_error_names_a_backend_without_target_cpus(compiled, adapter, tmp_path):
    with pytest.raises(UsageError, match="the backend 'counting' does not support it"):
        bundle_of(adapter, tmp_path, "a", "b", "scale", backend="counting", target_cpu="x86-64")


@needs_iree
def test_onnxruntime_runs_components_without_a_kernel(tmp_path):
    model = parse("a column of a length")
    bundle = bundle_of(model, tmp_path, "length", "r", backend="iree")
    feeds = {"x": random(9, 32), "length": np.array(9), "r": random(32)}
    placements = assert_runs(bundle, model, feeds, "onnxruntime", "iree", bound=1e-5)
    assert placements[0].reason == "IREE miscompiles Range for some values"
    assert (
        open_bundle(tmp_path).manifest.kernels[0].reason == "IREE miscompiles Range for some values"
    )


def test_another_package_can_provide_a_backend(compiled, adapter, tmp_path):
    names = ["a", "b", "scale"]
    bundle = bundle_of(adapter, tmp_path / "b", *names, backend="counting")
    (kernel,) = bundle.manifest.kernels
    assert (kernel.backend, kernel.reason, kernel.max_error) == ("counting", None, 0)
    feeds = adapter_feeds()
    assert_runs(tmp_path / "b", adapter, feeds, "counting", bound=0)
    with pytest.raises(UsageError, match="'broken' cannot be loaded: no driver"):
        split(adapter, tmp_path / "d", runtime_constants=names, backend="broken")
    with pytest.raises(UsageError, match="'counting' does not accept options"):
        split(adapter, tmp_path / "d", backend="counting", backend_options=["-O2"])
    with pytest.raises(
        UsageError, match=r"the backends are auto, .*, onnxruntime, a slow one, counting"
    ):
        split(adapter, tmp_path / "d", runtime_constants=names, backend="gpu")
    shutil.rmtree(tmp_path / "site")  # onnxruntime replaces the kernels of a removed backend
    sys.modules.pop("counting_backend")
    (place,) = assert_runs(tmp_path / "b", adapter, feeds, "onnxruntime", bound=0)
    assert "no backend has the name 'counting'" in place.reason


def test_the_reason_names_a_compiler_that_is_not_installed(adapter, tmp_path, monkeypatch):
    version = metadata.version

    def without_iree(name: str) -> str:
        if name.startswith("iree"):
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_iree)
    bundle = bundle_of(adapter, tmp_path, "a", "b", "scale", backend="iree")
    assert "pip install 'onnxfold[iree]'" in bundle.manifest.kernels[0].reason
    assert not kernel_folder().exists()


def prepared(model: onnx.ModelProto) -> tuple[ir.Model, list[str]]:
    opened = storage.from_proto(model)
    names = prepare(opened)
    onnx.checker.check_model(storage.to_proto(opened), full_check=True)
    return opened, names


def assert_near(opened: ir.Model, model: onnx.ModelProto, feeds: dict, bound: float) -> None:
    """Assert that a prepared model computes the results of the original model.

    Args:
        opened: The prepared model.
        model: The original model.
        feeds: The inputs, and the weights that the preparation turned into inputs.
        bound: The absolute and relative tolerance.
    """
    own = {value.name: feeds[value.name] for value in model.graph.input}
    for got, want in zip(
        original(storage.to_proto(opened), feeds), original(model, own), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=bound, atol=bound)


@needs_iree
@pytest.mark.parametrize("level", [0, 1])
def test_a_reshape_to_computed_sizes_is_compiled(tmp_path, level):
    model = parse("keys of two layers", w0=random(64, 64), w1=random(64, 64, seed=1))
    bundle = bundle_of(model, tmp_path, "states", backend="iree", level=level)
    assert [kernel.reason for kernel in bundle.manifest.kernels if kernel.reason] == []
    feeds = {"x": random(1, 3, 64, seed=2), "states": random(1, 50, 64, seed=3)}
    backends = ["iree"] * len(bundle.manifest.components)
    assert_runs(bundle, model, feeds, *backends, backend="iree")


def test_sizes_that_hold_for_inputs_with_elements_are_declared():
    """If there were no positions, the 0 in the shape would copy the size of axis 1, four heads."""
    model = parse("heads of positions")
    opened, _ = prepared(model)
    declared = {v.name: v.shape for node in opened.graph for v in node.outputs}
    assert [d for d in declared["y"] if isinstance(d, int)] == [4, 16]
    assert declared["flat"] == declared["y"]
    assert_near(opened, model, {"x": random(1, 4, 5, 16)}, 0)


def test_a_product_with_one_matrix_is_flattened():
    model = parse(
        """g (float[a, b, 64] x, float[3, c, 64] z) => (float[a, b, 300] y, float[3, c, 300] u) {
            y = MatMul(x, w)
            u = MatMul(z, w)
        }""",
        w=random(64, 300),
    )
    opened, names = prepared(model)
    assert names == ["w"]
    assert sum(node.op_type == "Reshape" for node in opened.graph) == 4
    feeds = {"x": random(2, 5, 64), "z": random(3, 4, 64), "w": random(64, 300)}
    assert_near(opened, model, feeds, 1e-5)


NORMALIZED = """g (float16[n, 8, {rest}] x, float16[{count}] s, float16[{count}] b)
    => (float16[n, 8, {rest}] y) {{ y = {op}(x, s, b) }}"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("(float16[n, m] x) => (float16[n, 1] y) { y = ReduceMean(x, a) }", ["5, 3000"]),
        (
            "(float16[n, m] x, float16[m, 4] z) => (float16[n, 4] y) { y = MatMul(x, z) }",
            ["5, 3", "3, 4"],
        ),
        ("(float16[n] x, float16[n] z) => (float16[n] y) { y = Max(x, z, x) }", ["5", "5"]),
        (NORMALIZED.format(op="LayerNormalization", rest=6, count=6)[2:], ["5, 8, 6", "6", "6"]),
        (NORMALIZED.format(op="InstanceNormalization", rest=6, count=8)[2:], ["5, 8, 6", "8", "8"]),
    ],
)
@pytest.mark.parametrize("opset", [17, 21])
def test_half_precision_is_computed_in_float32(text, shapes, opset):
    if opset < 18:  # the axes are an attribute
        text = text.replace("ReduceMean(x, a)", "ReduceMean<axes = [1]>(x)")
    elif "a)" in text:
        text = text.replace("{ y", "{ a = Constant<value_ints = [1]> () y")
    model = parse(f"g {text}")
    model.opset_import[0].version = opset
    opened, _ = prepared(model)
    halves = [
        node.op_type
        for node in opened.graph
        if any(v is not None and v.dtype == ir.DataType.FLOAT16 for v in node.inputs)
    ]
    assert set(halves) == {"Cast"}
    inputs = [v.name for v in model.graph.input]
    sizes = [tuple(map(int, shape.split(","))) for shape in shapes]
    feeds = {
        name: (random(*shape, seed=k) + 2).astype(np.float16)
        for k, (name, shape) in enumerate(zip(inputs, sizes, strict=True))
    }
    assert_near(opened, model, feeds, 2e-3)


loses_digits = pytest.mark.skipif(OLD_ONNXRUNTIME, reason="onnxruntime 1.23 loses them itself")


@pytest.mark.parametrize(
    "op",
    [pytest.param("LayerNormalization<axis = 1>", marks=loses_digits), "InstanceNormalization"],
)
def test_the_mean_is_subtracted_before_a_normalization(op):
    """After the subtraction, a compiler that computes E[x^2] - E[x]^2 loses no digits."""
    shape = "8, 6" if "Layer" in op else "8"
    model = parse(
        f"""g (float[n, 8, 6] x, float[{shape}] s, float[{shape}] b) => (float[n, 8, 6] y) {{
            y = {op}(x, s, b)
        }}"""
    )
    opened, _ = prepared(model)
    (node,) = [n for n in opened.graph if n.op_type in op]
    assert node.inputs[0].producer().op_type == "Sub"
    count = tuple(map(int, shape.split(",")))
    feeds = {"x": random(3, 8, 6) + 1000, "s": random(*count, seed=1), "b": random(*count, seed=2)}
    assert_near(opened, model, feeds, 1e-3)


@pytest.mark.parametrize(
    ("kind", "axis", "scales", "zero"),
    [("int8", 1, "6, 4", "z"), ("uint8", -2, "2, 12", "z"), ("uint8", 0, "2, 12", "")],
)
def test_blocks_of_dequantize_linear_become_an_axis(kind, axis, scales, zero):
    text = "DequantizeLinear<axis = {}, block_size = 3>(q, s, {}) y = Neg(k)"
    model = parse(
        f"""g ({kind}[6, 12] q, float[{scales}] s, {kind}[{scales}] z) => (float[6, 12] y) {{
            k = {text.format(axis, zero).replace(", )", ")")}
        }}"""
    )
    opened, _ = prepared(model)
    assert "DequantizeLinear" not in [node.op_type for node in opened.graph]
    shape = tuple(map(int, scales.split(",")))
    numbers = np.random.default_rng(0)
    q, z = (numbers.integers(-128, 128, sizes).astype(kind) for sizes in ((6, 12), shape))
    assert_near(opened, model, {"q": q, "s": random(*shape), "z": z}, 0)


def test_sizes_that_take_too_much_memory_are_refused(compiled):
    """Compiled code does not check whether its memory allocations succeed."""
    model = parse("a large product")
    session = session_on(model, "a", "b", backend="counting")
    assert [p.backend for p in session.placements()] == ["counting"]
    feeds = {"a": random(9, 1), "b": random(1, 5), "x": random(1)}
    np.testing.assert_allclose(session.run(None, feeds)[0], feeds["x"] + 9, rtol=1e-5)
    large = {"a": np.ones((10**7, 1), np.float32), "b": np.ones((1, 10**7), np.float32)}
    with pytest.raises(UsageError, match=r"the kernel may need 800,[\d,]+ bytes of memory"):
        session.run(None, {**feeds, **large})


def test_a_kernel_that_cannot_be_checked_at_nominal_sizes_is_not_used(compiled):
    text = "g (float[a, b, c, d, e, f, h] r, float[1] x) => (float[1] y)"
    model = parse(f"{text} {{ t = Exp(r) s = ReduceSum<keepdims = 0>(t) y = Add(s, x) }}")
    session = session_on(model, "r", backend="counting")
    (placement,) = session.placements()
    assert placement.backend == "onnxruntime" and "not enough memory" in placement.reason
    (got,) = session.run(None, {"r": np.zeros((1,) * 7, np.float32), "x": np.ones(1, np.float32)})
    assert got.tolist() == [2]


def test_integers_in_external_data_are_compiled(compiled, tmp_path):
    model = parse(
        "g (float[n, 64] r, float[1] x) => (float[n, 64] y, float[1] z) {"
        "t = Tanh(r) y = Gather<axis = 1>(t, w) z = Neg(x) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(64)[::-1], "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    feeds = {"r": random(3, 64), "x": random(1)}
    own = {"runtime_constants": ["r"], "backend": "counting"}
    assert_runs(path, onnx.load(path), feeds, "counting", bound=0, **own)


def test_an_optional_without_a_value_is_refused(compiled):
    model = parse(
        "g (float[n] r, float[1] x) => (float[n] y, float[1] z) { y = Exp(r) z = Neg(x) }"
    )
    session = session_on(model, "r", backend="counting")
    nothing = parse("g () => (optional(float[n]) y) { y = Optional<type = float[n]>() }")
    made = ort.InferenceSession(nothing.SerializeToString(), options())
    (empty,) = made.run_with_ort_values(None, {})
    for _ in range(2):
        with pytest.raises(UsageError, match=r"the OrtValue has no value|must be a tensor"):
            session.run(None, {"r": empty, "x": random(1)})
        session.run(None, {"r": random(4), "x": random(1)})
