from __future__ import annotations

import json

import pytest
from damaged_bundles import KINDS, sealed, try_damages
from runtime_models import assert_same, bundle_of, decoder_feeds, original, run, session_on


@pytest.fixture
def bundle(compiling, decoder, tmp_path):
    """A bundle with three kernels."""
    made = bundle_of(decoder, tmp_path / "b", "states", "mask", backend=compiling)
    assert [p.backend for p in session_on(made).placements()] == [compiling] * 3
    return made.folder


def check(bundle, count) -> None:
    results = try_damages(bundle, count)
    assert len(results) == count
    assert [r for r in results if r[2] not in ("refused", "onnxruntime")] == []


def test_a_damaged_bundle_is_refused_or_run_by_onnxruntime(bundle):
    check(bundle, 2 * len(KINDS))


@pytest.mark.slow
def test_two_hundred_damaged_bundles(bundle):
    check(bundle, 200)


def test_a_weight_that_is_gone(compiled, decoder, tmp_path):
    """A damaged manifest: onnxruntime takes over."""
    bundle = bundle_of(decoder, tmp_path / "b", "states")
    manifest = json.loads((bundle.folder / "manifest.json").read_text())
    (bundle.folder / "kernels").mkdir()
    (bundle.folder / "kernels" / "k.onnx").write_bytes(b"")
    names = bundle.manifest.components[0]
    manifest["kernels"] = [
        {
            "backend": "counting",
            "outputs": names,
            "inputs": ["states"],
            "weights": ["nowhere"],
            "file": "kernels/k.onnx",
        }
    ]
    (bundle.folder / "manifest.json").write_text(json.dumps(sealed(manifest)))
    feeds = decoder_feeds()
    got, placements = run(bundle.folder, feeds)
    reasons = {p.reason for p in placements if p.outputs == names}
    assert reasons == {"runtime_fold.onnx has no weight 'nowhere'"}
    assert_same(got, original(decoder, feeds))
