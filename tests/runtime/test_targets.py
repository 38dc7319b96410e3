"""Test kernels for several CPU levels, options of compilers, and the stages that IREE writes."""

import json
import platform
from collections.abc import Callable, Iterator

import pytest
from double import use_double
from runtime_models import (
    adapter_feeds,
    assert_runs,
    bundle_of,
    needs_iree,
    parse,
    random,
    run,
    sealed,
    session_on,
)

from onnxfold.runtime.backends import targets
from onnxfold.runtime.bundles.bundle import open_bundle
from onnxfold.support.errors import OnnxFoldError, UsageError
from onnxfold.support.system import cpu_levels, cpus

ADAPTER = ("a", "b", "scale")
LEVELS = ["x86-64", "x86-64-v2", "x86-64-v3"]

needs_v3 = pytest.mark.skipif("x86-64-v3" not in cpu_levels(), reason="the CPU has no AVX2")


@pytest.fixture
def use_level(monkeypatch) -> Iterator[Callable[[str], None]]:
    """Yield a function that hides all CPU features above a level from this process."""
    caches = (cpus.cpu_levels, cpus.cpu_features)
    levels = list(cpus.CPU_LEVELS)
    flags = cpus._cpu_flags()

    def use(level: str) -> None:
        higher = levels[levels.index(level) + 1 :]
        missing = {feature for name in higher for feature in cpus.CPU_LEVELS[name]}
        monkeypatch.setattr(cpus, "_cpu_flags", lambda: flags - missing)
        for function in caches:
            function.cache_clear()

    yield use
    monkeypatch.undo()
    for function in caches:
        function.cache_clear()


@needs_iree
@needs_v3
def test_the_kernel_for_the_highest_level_of_the_cpu_runs(adapter, tmp_path, use_level, caplog):
    chosen = ["x86-64-v3", "x86-64", "x86-64-v2", "x86-64"]
    bundle = bundle_of(adapter, tmp_path, *ADAPTER, backend="iree", target_cpu=chosen)
    kernels = bundle.manifest.kernels
    assert [kernel.cpu for kernel in kernels] == ["x86-64-v3", "x86-64", "x86-64-v2"]
    assert len({kernel.file for kernel in kernels}) == 3
    assert all(kernel.seconds and kernel.max_error is not None for kernel in kernels)
    for level in LEVELS:
        use_level(level)
        (place,) = assert_runs(tmp_path, adapter, adapter_feeds(), "iree")
        assert place.target_cpu == level
        kernel = next(kernel for kernel in kernels if kernel.cpu == level)
        assert place.kernel_seconds == kernel.seconds
    assert not caplog.text


@needs_iree
@needs_v3
def test_without_a_kernel_for_this_cpu_the_reason_names_all_levels(
    adapter, tmp_path, use_level, caplog
):
    chosen = ("x86-64-v3", "x86-64-v2")
    bundle_of(adapter, tmp_path, *ADAPTER, backend="iree", target_cpu=chosen)
    use_level("x86-64")
    (place,) = assert_runs(tmp_path, adapter, adapter_feeds(), "onnxruntime", bound=0)
    assert place.reason == "its kernels need x86-64-v2 or x86-64-v3, and this CPU has x86-64"
    assert place.target_cpu is None
    assert f"onnxruntime replaces the kernels for merged: {place.reason}" in caplog.text
    with pytest.raises(OnnxFoldError, match="its kernels need x86-64-v2 or x86-64-v3"):
        session_on(tmp_path, backend="iree", strict_backend=True)


@needs_iree
@needs_v3
def test_a_damaged_kernel_is_replaced_by_that_for_a_lower_level(adapter, tmp_path, caplog):
    chosen = ["x86-64-v2", "x86-64-v3"]
    bundle = bundle_of(adapter, tmp_path, *ADAPTER, backend="iree", target_cpu=chosen)
    best = bundle.manifest.kernels[1]
    file = tmp_path / str(best.file)
    file.write_bytes(file.read_bytes()[:-1])
    (place,) = assert_runs(tmp_path, adapter, adapter_feeds(), "iree")
    assert place.target_cpu == "x86-64-v2"
    assert "the kernel of merged for x86-64-v3 is not used" in caplog.text


@needs_iree
@pytest.mark.skipif(not cpu_levels(), reason="the CPU is no x86-64")
def test_native_and_generic_are_levels_of_x86(adapter, tmp_path):
    def levels_of(*chosen: str, **arguments: object) -> list[str]:
        target_cpu = chosen[0] if len(chosen) == 1 else chosen
        bundle = bundle_of(
            adapter, tmp_path, *ADAPTER, backend="iree", target_cpu=target_cpu, **arguments
        )
        return [kernel.cpu for kernel in bundle.manifest.kernels]

    assert levels_of("native") == [cpu_levels()[-1]]
    assert levels_of("generic") == ["x86-64"]
    assert levels_of("native", cpu_levels()[-1], "generic", "x86-64") == [
        *dict.fromkeys([cpu_levels()[-1], "x86-64"])
    ]
    given = {"backend_options": ["--iree-llvmcpu-target-cpu=host"]}
    assert levels_of("native", **given) == [cpus.cpu_features()]


@needs_iree
@needs_v3
def test_a_session_on_a_model_has_kernels_for_all_levels(adapter):
    chosen = ["x86-64", "x86-64-v3"]
    session = session_on(adapter, *ADAPTER, backend="iree", target_cpu=chosen)
    (place,) = session.placements()
    assert (place.backend, place.target_cpu) == ("iree", "x86-64-v3")
    assert len(session.bundle.manifest.kernels) == 2


@needs_iree
@needs_v3
def test_components_that_share_kernels_share_those_of_each_level(tmp_path):
    model = parse("keys of two layers", w0=random(64, 64), w1=random(64, 64, seed=1))
    chosen = ["x86-64-v2", "x86-64-v3"]
    bundle = bundle_of(model, tmp_path, "states", backend="iree", target_cpu=chosen)
    components = len(bundle.manifest.components)
    assert len(bundle.manifest.kernels) == 2 * components
    assert len({kernel.file for kernel in bundle.manifest.kernels}) == 2
    feeds = {"x": random(1, 3, 64, seed=2), "states": random(1, 50, 64, seed=3)}
    assert_runs(bundle, model, feeds, *["iree"] * components, backend="iree")


@needs_v3
@pytest.mark.slow
def test_onnx_mlir_has_kernels_for_several_levels(adapter, tmp_path, monkeypatch, use_level):
    use_double(tmp_path, monkeypatch)
    chosen = ["native", "x86-64-v2", "x86-64-v3"]
    arguments = {"backend": "onnx-mlir", "target_cpu": chosen}
    bundle = bundle_of(adapter, tmp_path / "b", *ADAPTER, **arguments)
    assert [kernel.cpu for kernel in bundle.manifest.kernels] == ["x86-64-v3", "x86-64-v2"]
    use_level("x86-64-v2")
    (place,) = assert_runs(bundle, adapter, adapter_feeds(), "onnx-mlir", backend="onnx-mlir")
    assert place.target_cpu == "x86-64-v2"


@needs_v3
@pytest.mark.slow
def test_a_level_that_the_compiler_rejects_is_named(adapter, tmp_path, monkeypatch, caplog):
    """The double rejects x86-64, so only one of the two levels has a kernel."""
    use_double(tmp_path, monkeypatch)
    arguments = {"backend": "onnx-mlir", "target_cpu": ["x86-64-v3", "generic"]}
    bundle = bundle_of(adapter, tmp_path / "b", *ADAPTER, **arguments)
    compiled, refused = bundle.manifest.kernels
    assert (compiled.reason, compiled.cpu, refused.cpu) == (None, "x86-64-v3", "x86-64")
    assert "merged: onnx-mlir compiled no kernel for x86-64: " in caplog.text
    assert run(bundle, adapter_feeds(), backend="onnx-mlir")[1][0].target_cpu == "x86-64-v3"
    with pytest.raises(OnnxFoldError, match="does not run 1 of 1 components: merged: for x86-64: "):
        bundle_of(adapter, tmp_path / "c", *ADAPTER, strict_backend=True, **arguments)


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_generic_is_the_baseline_of_arm64(monkeypatch, machine):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    targets.check_targets(["generic", "native"])
    assert targets.compiler_cpu("generic") == "generic"
    assert targets.cpu_key("generic") == "armv8-a"
    assert targets.unusable_cpu("armv8-a") is None


def test_a_kernel_for_arm64_does_not_run_on_x86(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    reason = targets.unusable_cpu("armv8-a")
    assert reason is not None
    assert reason.startswith("its kernel needs armv8-a, and this CPU has x86")


def test_targets_that_cannot_be_compiled_are_refused(adapter, tmp_path, use_level, monkeypatch):
    def refused(*chosen: str) -> str:
        with pytest.raises(UsageError) as raised:
            bundle_of(adapter, tmp_path, *ADAPTER, target_cpu=chosen)
        return str(raised.value)

    assert refused("native", "x86-64-v33") == (
        "target_cpu x86-64-v33: there is no such CPU level; did you mean 'x86-64-v3'?"
    )
    assert "did you mean 'native'?" in refused("nativ")
    use_level("x86-64-v2")
    if cpu_levels():
        assert refused("x86-64-v2", "x86-64-v3") == (
            "target_cpu x86-64-v3: compiled kernels are checked on this machine, and its CPU has "
            f"{cpu_levels()[-1]}"
        )
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert "there is no generic CPU for riscv64; use native" in refused("generic")


@needs_iree
def test_bundles_of_format_1_are_read(adapter, tmp_path):
    bundle_of(adapter, tmp_path, *ADAPTER, backend="iree")
    file = tmp_path / "manifest.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps(sealed({**written, "format": 1})))
    assert_runs(tmp_path, adapter, adapter_feeds(), "iree")
    assert open_bundle(tmp_path).to_dict() == written


@needs_iree
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--iree-opt-levl=O3", "; did you mean '--iree-opt-level'?"),
        ("--iree-llvmcpu-target-cp=host", "; did you mean '--iree-llvmcpu-target-cpu'?"),
        ("-iree-vm-target-index-bit=32", "; did you mean '--iree-vm-target-index-bits'?"),
        ("--qzxj", ""),
    ],
)
def test_an_option_that_iree_does_not_have_is_an_error(adapter, tmp_path, option, message):
    with pytest.raises(UsageError) as raised:
        bundle_of(adapter, tmp_path, *ADAPTER, backend="iree", backend_options=[option])
    assert str(raised.value) == f"{option}: iree has no such option{message}"


@needs_iree
def test_process_options_of_the_compiler_are_passed_on(adapter, tmp_path):
    """IREE has options of a session and options of the whole process."""
    given = ["--iree-llvmcpu-distribution-size=64", "--iree-vm-target-index-bits=64"]
    bundle = bundle_of(adapter, tmp_path, *ADAPTER, backend="iree", backend_options=given)
    assert [kernel.reason for kernel in bundle.manifest.kernels] == [None]
    given = ["--iree-stream-resource-index-bits=many"]
    bundle = bundle_of(adapter, tmp_path, *ADAPTER, backend="iree", backend_options=given)
    assert "'many' value invalid" in str(bundle.manifest.kernels[0].reason)


@needs_iree
def test_all_phases_of_iree_are_written(adapter, tmp_path):
    folder = tmp_path / "ir"
    bundle_of(adapter, tmp_path / "b", *ADAPTER, backend="iree", dump_ir=folder)
    own = folder / "component_0"
    stages = sorted(path.stem for path in own.glob("*.mlir"))
    assert [stage[:2] for stage in stages] == [f"{k:02}" for k in range(1, len(stages) + 1)]
    names = [stage[3:] for stage in stages]
    assert names[:4] == ["imported", "torch", "lowered", "linalg"]
    assert [name for name in names if name in ("flow", "stream", "hal", "vm")] == [
        "flow",
        "stream",
        "hal",
        "vm",
    ]
    for number, name in enumerate(names, 1):
        text = (own / f"{number:02}-{name}.mlir").read_text()
        if name in ("flow", "stream", "hal", "vm"):
            assert f"{name}." in text
    assert list((own / "kernels").iterdir())


@needs_iree
@needs_v3
def test_phases_are_written_for_each_target(adapter, tmp_path):
    folder = tmp_path / "ir"
    chosen = ["generic", "x86-64-v3"]
    arguments = {"backend": "iree", "target_cpu": chosen, "dump_ir": folder}
    bundle_of(adapter, tmp_path / "b", *ADAPTER, **arguments)
    names = {path.name for path in (folder / "component_0").iterdir()}
    assert names == {"0-prepared.onnx", *chosen}
    codes = [(folder / "component_0" / name / "16-vm.mlir").read_text() for name in chosen]
    assert codes[0] != codes[1]


@pytest.mark.parametrize("backend", ["auto", "iree", "onnxruntime"])
def test_a_session_checks_targets_at_once(adapter, backend):
    arguments = {"backend": backend, "target_cpu": ["generic", "x86-64-v9"]}
    with pytest.raises(UsageError, match="target_cpu x86-64-v9: there is no such CPU level"):
        session_on(adapter, *ADAPTER, **arguments)
