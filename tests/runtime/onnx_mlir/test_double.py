"""Test the backend onnx-mlir from model to results, with the double in compiler_double.py."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Engine, build
from processes import ABORTED, ACCESS_VIOLATION
from runtime_models import (
    adapter_feeds,
    assert_runs,
    bundle_of,
    options,
    parse,
    random,
    renamed,
    run,
    sealed,
    session_on,
)

from onnxfold.ir import storage
from onnxfold.runtime.backends import compilation
from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.kernel_check import Draw, check_kernel
from onnxfold.runtime.backends.onnx_mlir import OnnxMlir
from onnxfold.runtime.bundles.bundle import open_bundle
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session
from onnxfold.runtime.split_model import split
from onnxfold.support.errors import OnnxFoldError, UsageError
from onnxfold.support.system import cpu_features

ADAPTER = ("a", "b", "scale")


def split_adapter(adapter, folder, backend="onnx-mlir", **arguments):
    return bundle_of(adapter, folder, *ADAPTER, backend=backend, **arguments)


def test_kernels_can_be_compiled_in_a_container(engine, adapter, tmp_path):
    bundle = split_adapter(adapter, tmp_path / "b")
    assert bundle.manifest.kernels[0].reason is None
    assert bundle.manifest.kernels[0].key["maker"] == f"image {Engine.IMAGE}"
    (call,) = [c for c in engine.calls() if c[0] == "run"]
    folder = next(w for w in call if w.startswith("--workdir=")).partition("=")[2]
    assert not Path(folder).exists()
    assert_runs(bundle, adapter, adapter_feeds(), "onnx-mlir")


def test_folded_tensors_outlive_the_session(compiler, adapter):
    session = session_on(adapter, *ADAPTER, backend="onnx-mlir")
    feeds = adapter_feeds()
    handle = session.fold({name: feeds[name] for name in ADAPTER})
    (tensor,) = handle.tensors().values()
    del session, handle
    w = onnx.numpy_helper.to_array(adapter.graph.initializer[0])
    want = w + feeds["a"] @ feeds["b"] * feeds["scale"]
    np.testing.assert_allclose(tensor.numpy(), want, rtol=1e-4, atol=1e-4)


LIMITED = """
import resource, sys
import numpy as np
import onnx, onnx.parser
import onnxfold
import psutil

model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 1] a, float[1, k] b, float[k, 1] c, float[1] x) => (float[n, 1] y, float[1] z) {
        t = Mul(a, b) y = MatMul(t, c) z = Neg(x) }''')
session = onnxfold.Session(model, runtime_constants=["a", "b", "c"], backend="onnx-mlir")
ones = {n: np.ones(s, np.float32) for n, s in (("a", (4, 1)), ("b", (1, 4)), ("c", (4, 1)))}
print(*session.placements(), session.run(["y"], {**ones, "x": np.ones(1, np.float32)})[0].sum())
kind, own = getattr(resource, "RLIMIT_" + sys.argv[1]), psutil.Process().memory_info()
soft = (own.vms if sys.argv[1] == "AS" else own.data) + (256 << 20)
resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
large = {n: np.resize(a, [9999 if d == 4 else d for d in a.shape]) for n, a in ones.items()}
try:
    session.run(None, {**large, "x": np.ones(1, np.float32)})
except onnxfold.OnnxFoldError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds private memory")
@pytest.mark.parametrize("limit", ["AS", "DATA"])
def test_a_kernel_is_not_called_beyond_the_limits_of_the_process(compiler, limit):
    """Like those of the real compiler, kernels of the double do not check the results of malloc."""
    command = [sys.executable, "-c", LIMITED, limit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "backend='onnx-mlir'" in done.stdout) == (0, True), done.stderr
    assert "the kernel may need 400," in done.stdout and " 16.0" in done.stdout


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int64", "bool"])
def test_other_types_are_checked_and_folded(compiler, tmp_path, dtype):
    import ml_dtypes

    model = parse(
        f"""g (float[n, 8] x, {dtype}[8, 4] r) => (float[n, 4] y) {{
            t = Transpose<perm = [1, 0]>(r)
            c = Cast<to = 1>(t)
            u = Transpose<perm = [1, 0]>(c)
            y = MatMul(x, u)
        }}"""
    )
    names = {"bfloat16": ml_dtypes.bfloat16, "bool": np.bool_}
    r = (random(8, 4) * 3).astype(names.get(dtype, dtype))
    bundle = bundle_of(model, tmp_path, "r", backend="onnx-mlir", level=0)
    (kernel,) = bundle.manifest.kernels
    x = random(3, 8, seed=1)
    got, placements = run(bundle, {"x": x, "r": r})
    np.testing.assert_allclose(got[0], x @ r.astype(np.float32), rtol=1e-5, atol=1e-5)
    assert (kernel.reason, kernel.max_error) == (None, 0)
    assert placements[0].backend == "onnx-mlir"


def test_weights_are_inputs_and_scalars_are_in_the_kernel(compiler, tmp_path):
    model = parse(
        """g (float[n, 300] x, float[300] r) => (float[n, 300] y) {
            scaled = Mul(w, r)
            shifted = Add(scaled, b)
            y = MatMul(x, shifted)
        }""",
        w=random(300, 300),
        b=random(1, seed=1),
    )
    bundle = bundle_of(model, tmp_path, "r", backend="onnx-mlir", level=0)
    (kernel,) = bundle.manifest.kernels
    assert (kernel.reason, kernel.inputs, kernel.weights) == (None, ["r"], ["w"])
    assert (tmp_path / kernel.file).stat().st_size < 300 * 300 * 4
    feeds = {"x": random(4, 300, seed=2), "r": random(300, seed=3)}
    assert_runs(bundle, model, feeds, "onnx-mlir", bound=1e-3)


@pytest.mark.slow
def test_kernel_of_another_compiler_is_replaced(compiler, adapter, tmp_path):
    first = split_adapter(adapter, tmp_path / "1").manifest.kernels[0]
    assert split_adapter(adapter, tmp_path / "2").manifest.kernels[0] == first
    os.utime(compiler, (0, 0))
    second = split_adapter(adapter, tmp_path / "1").manifest.kernels[0]
    assert second.key["maker"] != first.key["maker"] and second.file != first.file
    assert [p.name for p in (tmp_path / "1" / "kernels").iterdir()] == [Path(second.file).name]
    assert len(list(compilation.kernel_folder().iterdir())) == 2


@pytest.mark.slow
def test_options_are_passed_to_the_compiler_and_part_of_the_key(
    compiler, adapter, tmp_path, monkeypatch
):
    calls = tmp_path / "calls"
    monkeypatch.setenv("DOUBLE_CALLS", str(calls))
    plain = split_adapter(adapter, tmp_path / "b").manifest.kernels[0]
    given = ["-O1", "--mcpu=znver4"]
    own = split_adapter(adapter, tmp_path / "b", backend_options=given).manifest.kernels[0]
    assert own.reason is None and own.file != plain.file
    words = own.key["flags"].split()
    assert words[-2:] == given and "-O3" not in words and "--mcpu=x86-64-v3" not in words
    assert own.key["cpu"] == cpu_features()  # other CPUs may not have the instructions
    first, second = calls.read_text().splitlines()
    assert "-O3 " in first and "-O1 --mcpu=znver4 --EmitLib" in second
    split_adapter(adapter, tmp_path / "c", backend_options=given)  # the kernel is cached
    assert len(calls.read_text().splitlines()) == 2
    assert run(tmp_path / "c", adapter_feeds())[1][0].backend == "onnx-mlir"
    with pytest.raises(UsageError, match="--no-such=1: onnx-mlir has no such option"):
        split_adapter(adapter, tmp_path / "d", backend_options=["--no-such=1"])
    own_options = {"backend_options": given, "strict_backend": True}
    session = session_on(adapter, *ADAPTER, backend="onnx-mlir", **own_options)
    assert session.bundle.manifest.kernels[0].file == own.file
    assert len(calls.read_text().splitlines()) == 2
    split_adapter(adapter, tmp_path / "b", dump_ir=tmp_path / "ir", backend_options=given)
    assert "-O1 --mcpu=znver4 --EmitLLVMIR" in calls.read_text()


@pytest.mark.slow
def test_strict_backend_raises_an_error_instead_of_a_warning(compiler, tmp_path, caplog):
    model = parse(
        """g (float[n, 32] x, float[32] r, float[32] s) => (float[n, 32] y) {
            a = Tanh(r)
            b = Exp(s)
            t = Mul(x, a)
            y = Mul(t, b)
        }"""
    )
    arguments = {"runtime_constants": ["r", "s"], "backend": "onnx-mlir"}
    refused = r"onnx-mlir does not run 1 of 2 components: a: .*'onnx.Tanh'"
    with pytest.raises(OnnxFoldError, match=refused):
        Session(model, options(), strict_backend=True, **arguments)
    with pytest.raises(OnnxFoldError, match=refused):
        split(model, tmp_path / "b", strict_backend=True, **arguments)
    assert not (tmp_path / "b").exists() and not caplog.messages
    Session(model, options(), **arguments)
    (warning,) = caplog.messages
    assert warning.startswith("onnx-mlir runs 1 of 2 components: a: onnx-mlir failed")
    bundle = split(model, tmp_path / "b", **arguments)
    assert len(caplog.messages) == 2
    feeds = {"x": random(9, 32), "r": random(32, seed=1), "s": random(32, seed=2)}
    placements = assert_runs(bundle, model, feeds, "onnxruntime", "onnx-mlir", bound=1e-5)
    reason = "onnx-mlir failed (exit code 14): failed to legalize operation 'onnx.Tanh'"
    assert [place.reason for place in placements] == [reason, None]
    for backend, left in [("auto", 0), ("onnxruntime", 0), ("onnx-mlir", 1), ("iree", 2)]:
        caplog.clear()
        Session(bundle, options(), backend=backend)
        assert len(caplog.messages) == (left > 0)
        if left:
            with pytest.raises(OnnxFoldError, match=f"{backend} does not run {left} of 2"):
                Session(bundle, options(), backend=backend, strict_backend=True)
    own = {**arguments, "runtime_constants": ["s"]}
    assert Session(model, options(), strict_backend=True, **own).placements()
    with pytest.raises(UsageError, match="choose iree or onnx-mlir"):
        Session(model, options(), strict_backend=True)


WRONG = """
    int64_t shape[] = {64, 64};
    OMTensor *made = omTensorCreateEmpty(shape, 2, FLOAT);
    memset(made->aligned, 0, 64 * 64 * 4);
    return omTensorListCreate(&made, 1);"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("abort();", rf"^the kernel crashed \({ABORTED}\)$"),
        ("assert(!given);", rf"^the kernel crashed \({ABORTED}\): Assertion `!given' failed.$"),
        ("raise(SIGSEGV); return NULL;", rf"crashed \({ACCESS_VIOLATION}\)"),
        ("errno = EPERM; return NULL;", "failed: Operation not permitted"),
        ("return omTensorListCreate(NULL, 0);", "the kernel has 0 results, not 1"),
        (WRONG, "the kernel's results are wrong"),
    ],
)
def test_wrong_kernels_are_not_used(compiler, adapter, tmp_path, monkeypatch, body, reason):
    monkeypatch.setenv("DOUBLE_BODY", body)
    bundle = split_adapter(adapter, tmp_path / "b")
    assert re.search(reason, bundle.manifest.kernels[0].reason)
    assert_runs(bundle, adapter, adapter_feeds(), "onnxruntime", bound=0)
    assert not compilation.kernel_folder().exists()


@pytest.mark.slow
def test_endless_kernel_is_ended(tmp_path):
    source = tmp_path / "endless.c"
    source.write_text(
        """#include "om_api.h"
        API OMTensorList *run_main_graph(OMTensorList *given) { for (;;); }"""
    )
    model = parse("g () => (float[1] y) { y = Constant<value_floats = [1.0]>() }")
    library = build(source, tmp_path / "endless.so")
    kernel = Kernel("onnx-mlir", ["y"], file=library.name, function="run_main_graph")
    with pytest.raises(CompileError, match=r"^the kernel took longer than 2 s$"):
        check_kernel(kernel, tmp_path, storage.from_proto(model), [Draw("nothing", [])], seconds=2)


def test_kernel_is_used_only_with_its_backend_and_machine(compiler, adapter, tmp_path):
    split_adapter(adapter, tmp_path / "b")
    file = tmp_path / "b" / "manifest.json"
    feeds = adapter_feeds()
    whole = file.read_text()
    _, placements = run(tmp_path / "b", feeds, backend="iree")
    assert placements[0].reason == "the kernel was compiled by onnx-mlir"
    assert run(tmp_path / "b", feeds, backend="auto")[1][0].backend == "onnx-mlir"
    for what, value, reason in (
        ("machine", "linux-z80", "the kernel was compiled for linux-z80, and this machine is "),
        ("cpu", "x86-64-v9", "its kernel needs x86-64-v9, and this CPU has x86-64"),
    ):
        manifest = json.loads(whole)
        manifest["kernels"][0]["key"][what] = value
        file.write_text(json.dumps(sealed(manifest)))
        (place,) = assert_runs(tmp_path / "b", adapter, feeds, "onnxruntime", bound=0)
        assert place.reason.startswith(reason)
    for name in ("../x.so", "/tmp/x.so"):
        for key, value in (("file", name), ("beside", [name])):
            manifest = json.loads(whole)
            manifest["kernels"][0][key] = value
            file.write_text(json.dumps(manifest))
            with pytest.raises(Exception, match="is outside of the bundle"):
                open_bundle(tmp_path / "b")


def test_reason_of_a_compiler_crash_is_recorded(compiler, tmp_path):
    """The compiler crashes if it generates checks for a bfloat16 input."""
    model = parse(
        """g (float[8] x, bfloat16[8] r) => (float[8] y) {
            c = Cast<to = 1>(r)
            e = Exp(c)
            y = Mul(x, e)
        }"""
    )
    bundle = bundle_of(
        model, tmp_path, "r", backend="onnx-mlir", backend_options=["--verifyInputTensors=true"]
    )
    assert bundle.manifest.kernels[0].reason == (
        f"onnx-mlir crashed ({ABORTED}): "
        'Assertion `array && "failed to parse the signature"\' failed.'
    )


@pytest.mark.parametrize("form", ['{}"', "/model/{}/:0", "{} {{}}\n", "{}\N{SNOWMAN}"])
def test_names_may_contain_any_characters(compiler, adapter, tmp_path, form):
    """The compiler crashes on quotes in names, because they make its signatures invalid JSON."""
    model = renamed(adapter, form.format)
    constants = [form.format(name) for name in ADAPTER]
    options = {"backend_options": ["--verifyInputTensors=true"], "strict_backend": True}
    bundle = bundle_of(model, tmp_path / "b", *constants, backend="onnx-mlir", **options)
    (kernel,) = open_bundle(tmp_path / "b").manifest.kernels
    assert sorted(kernel.inputs) == sorted(constants)
    feeds = {form.format(name): array for name, array in adapter_feeds().items()}
    assert_runs(bundle, model, feeds, "onnx-mlir")


def test_default_values_are_passed_to_a_kernel(compiler, tmp_path):
    model = parse(
        """g (float[n, 8] x, float[8] r, float[8] s, float[8, 4] w) => (float[n, 4] y) {
            e = Exp(r)
            f = Mul(e, s)
            c = Unsqueeze(f, axes)
            g = Mul(w, c)
            y = MatMul(x, g)
        }""",
        s=random(8, seed=1),
        w=random(8, 4, seed=2),
        axes=np.array([1]),
    )
    bundle = bundle_of(model, tmp_path, "r", overridable=True, backend="onnx-mlir")
    assert [k.reason for k in bundle.manifest.kernels] == [None]
    feeds = {"x": random(3, 8, seed=3), "r": random(8, seed=4)}
    for given in ({}, {"s": random(8, seed=5)}, {"s": random(8), "w": random(8, 4)}):
        assert_runs(bundle, model, {**feeds, **given}, "onnx-mlir")


def test_library_in_use_is_replaced_and_not_changed(compiler, adapter, tmp_path):
    bundle = split_adapter(adapter, tmp_path / "b")
    session = session_on(bundle, cache=FoldCache(max_bytes=0))
    feeds = adapter_feeds()
    want = session.run(None, feeds)[0].tobytes()
    file = tmp_path / "b" / bundle.manifest.kernels[0].file
    before = file.stat().st_ino
    split_adapter(adapter, tmp_path / "b")
    assert file.stat().st_ino != before
    assert session.run(None, adapter_feeds())[0].tobytes() == want


def test_stages_of_compilation_are_written(compiler, adapter, tmp_path):
    split_adapter(adapter, tmp_path / "b", dump_ir=tmp_path / "ir")
    folder = tmp_path / "ir" / "component_0"
    assert sorted(p.name for p in folder.iterdir()) == [
        "0-prepared.onnx",
        "1-onnx.mlir",
        "2-mlir.mlir",
        "3-llvm.mlir",
    ]
    assert "--EmitLLVMIR" in (folder / "3-llvm.mlir").read_text()
    onnx.checker.check_model(folder / "0-prepared.onnx")


def test_stages_need_a_compiler(clean_path, adapter, tmp_path):
    with pytest.raises(UsageError, match="no container engine"):
        split_adapter(adapter, tmp_path / "b", "onnx-mlir", dump_ir=tmp_path / "ir")
    assert not (tmp_path / "b").exists() and not (tmp_path / "ir").exists()


def test_unsupported_ops_and_types_are_reported(compiler):
    model = parse(
        """g (float[n] x, int64[n] i) => (float[n] y) {
            y = Identity(x)
        }"""
    )
    import onnx_ir as ir

    opened = ir.from_proto(model)
    assert OnnxMlir().supported(opened) == []
    opened.graph.inputs[1].type = ir.TensorType(ir.DataType.STRING)
    opened.graph.node(0).domain = "com.example"
    assert OnnxMlir().supported(opened) == [
        "onnx-mlir does not support com.example::Identity",
        "onnx-mlir does not support string, the type of 'i'",
    ]
