"""Test that kernels are timed when they are compiled and that the faster backend runs."""

import onnx
import pytest
from processes import ABORTED
from runtime_models import assert_runs, bundle_of, decoder_feeds

from onnxfold.runtime.bundles.bundle import open_bundle
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.tools.bench.side_by_side import bench_models

SLOW = "a slow one"
FAST = "a fast one"


@pytest.fixture(autouse=True)
def any_speed():
    """Override the fixture of conftest.py: these tests depend on the speed of kernels."""


def compile_(model, folder, backend=SLOW, **arguments):
    names = ["states", "mask"]
    return bundle_of(model, folder, *names, backend=backend, **arguments)


def test_the_manifest_contains_the_times_of_both_backends(compiled, decoder, tmp_path):
    compile_(decoder, tmp_path / "b")
    kernels = open_bundle(tmp_path / "b").manifest.kernels
    assert [kernel.timed_at for kernel in kernels] == [[[1, 64, 64]]] * 2 + [[[1, 64]]]
    for kernel in kernels:
        assert kernel.seconds > kernel.onnxruntime_seconds > 0


@pytest.mark.slow
def test_auto_selects_the_faster_backend(compiled, decoder, tmp_path):
    bundle = compile_(decoder, tmp_path / "b")
    placements = assert_runs(bundle, decoder, decoder_feeds(), *["onnxruntime"] * 3, bound=0)
    reason = f"onnxruntime is faster than the kernel that {SLOW} compiled"
    assert {p.reason for p in placements} == {reason}
    assert all(p.kernel_seconds > p.onnxruntime_seconds for p in placements)
    assert_runs(compile_(decoder, tmp_path / "c", FAST), decoder, decoder_feeds(), *[FAST] * 3)


def test_onnxruntime_has_to_be_faster_by_five_percent():
    of = {"backend": "iree", "outputs": ["y"], "onnxruntime_seconds": 1.0}
    assert not Kernel(**of, seconds=1.04).is_slower
    assert Kernel(**of, seconds=1.06).is_slower


def test_a_requested_backend_runs_even_if_it_is_slower(compiled, decoder, tmp_path):
    bundle = compile_(decoder, tmp_path / "b")
    placements = assert_runs(bundle, decoder, decoder_feeds(), *[SLOW] * 3, backend=SLOW)
    assert all(p.kernel_seconds > p.onnxruntime_seconds for p in placements)


@pytest.mark.slow
def test_times_are_cached_and_measured_again_for_other_sizes(compiled, decoder, tmp_path):
    first = compile_(decoder, tmp_path / "1").manifest.kernels
    assert compile_(decoder, tmp_path / "2").manifest.kernels == first
    third = compile_(decoder, tmp_path / "3", nominal={"batch": 3, "positions": 5})
    assert [kernel.timed_at for kernel in third.manifest.kernels][-1] == [[3, 5]]
    assert len(list(compiled.iterdir())) == 3


def test_a_kernel_that_crashes_at_nominal_sizes_is_not_used(
    compiled, decoder, tmp_path, monkeypatch
):
    monkeypatch.setenv("DIES_OF", "64")  # the width of states, and the nominal positions
    bundle = compile_(decoder, tmp_path / "b")
    kernels = bundle.manifest.kernels
    for kernel in kernels:
        assert kernel.file is None and f"crashed ({ABORTED})" in kernel.reason
    kernels = compile_(decoder, tmp_path / "d", nominal={"positions": 33}).manifest.kernels
    assert [k.reason is None for k in kernels] == [False, False, True]
    assert kernels[2].timed_at == [[1, 33]]


def test_bench_contains_the_backends_and_the_times_of_kernels(compiled, decoder, tmp_path):
    onnx.save(decoder, tmp_path / "model.onnx")
    models = [tmp_path / "model.onnx", compile_(decoder, tmp_path / "b").folder]
    for backend, maker in (("auto", "onnxruntime"), (SLOW, SLOW)):
        found = bench_models(models, rounds=1, threads=[1], backend=backend)
        assert {place.backend for place in found.models[1].folding.placements} == {maker}
    for place in found.to_dict()["models"][1]["folding"]["placements"]:
        assert place["kernel_seconds"] >= 0.01 > place["onnxruntime_seconds"]
