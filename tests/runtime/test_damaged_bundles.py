from __future__ import annotations

import json

import pytest
from damaged_bundles import KINDS, sealed, try_damages
from double import use_double
from runtime_models import bundle_of, decoder_feeds, options, original

from onnxfold.runtime.backends import iree
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session


@pytest.fixture(params=["onnx-mlir", pytest.param("iree", marks=pytest.mark.slow)])
def bundle(request, decoder, tmp_path, monkeypatch):
    """A bundle with three kernels; of onnx-mlir by the double of its compiler."""
    if request.param == "iree" and iree.Iree().missing():
        pytest.skip(iree.Iree().missing())
    if request.param == "onnx-mlir":
        use_double(tmp_path, monkeypatch)
    names = ("states", "mask")
    made = bundle_of(decoder, tmp_path / "b", *names, backend=request.param)
    session = Session(made, options(), cache=FoldCache())
    assert [p.backend for p in session.placements()] == [request.param] * 3
    return tmp_path / "b"


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
    session = Session(bundle.folder, options(), cache=FoldCache())
    reasons = {p.reason for p in session.placements() if p.outputs == names}
    assert reasons == {"runtime_fold.onnx has no weight 'nowhere'"}
    feeds = decoder_feeds()
    assert session.run(None, feeds)[0].tobytes() == original(decoder, feeds)[0].tobytes()
