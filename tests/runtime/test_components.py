from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest
from damaged_bundles import sealed
from runtime_models import bundle_of, decoder_feeds, options, original, parse, random

from onnxfold import storage
from onnxfold.passes.dead_code import RemoveDeadCode
from onnxfold.runtime.backends.component import Component
from onnxfold.runtime.bundles.manifest import FOLD_FILE
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session

BRANCHES = """g (float[n, 8] x, float[8, 8] r, bool c) => (float[n, 8] y, float[n, 8] z) {
    e = Exp(r)
    t = Tanh(e)
    picked = If(c) <
        then_branch = yes () => (float[8, 8] a) { a = MatMul(t, w) },
        else_branch = no () => (float[8, 8] b) { b = Mul(e, w) }
    >
    y = MatMul(x, picked)
    s = Sin(w)
    u = Mul(s, r)
    z = MatMul(x, u)
}"""


def components_of(bundle) -> list[list[str]]:
    return bundle.manifest.components


def restricted(model: ir.Model, outputs: list[str]) -> ir.Model:
    """All of a model that makes some of its outputs."""
    wanted = [v for v in model.graph.outputs if v.name in outputs]
    model.graph.outputs.clear()
    model.graph.outputs.extend(wanted)
    RemoveDeadCode()(model)
    for value in list(model.graph.inputs):
        if not value.uses():
            model.graph.inputs.remove(value)
    return model


@pytest.mark.parametrize("level", [0, 1])
def test_a_component_is_that_part_of_the_whole(tmp_path, level):
    model = parse(BRANCHES, w=random(8, 8))
    bundle = bundle_of(model, tmp_path, "r", "c", level=level)
    feeds = {"r": random(8, 8, seed=1)}
    fold = bundle.load(FOLD_FILE)
    assert len(components_of(bundle)) == 2
    for names in components_of(bundle):
        component = Component(fold, names)
        want = storage.to_proto(restricted(storage.load(bundle.runtime_fold), names))
        got = storage.to_proto(component.original)
        assert [v.name for v in got.graph.output] == component.outputs == names
        assert [v.name for v in got.graph.input] == [v.name for v in want.graph.input]
        assert component.inputs == [v.name for v in want.graph.input]
        assert [n.SerializeToString() for n in got.graph.node] == [
            n.SerializeToString() for n in want.graph.node
        ]
        for condition in (True, False):
            given = {**feeds, "c": np.array(condition)}
            given = {name: given[name] for name in component.inputs}
            for a, b in zip(original(got, given), original(want, given), strict=True):
                assert a.tobytes() == b.tobytes()


def test_the_same_part_has_the_same_hash(decoder, tmp_path):
    folds = []
    for folder in ("a", "b"):
        bundle = bundle_of(decoder, tmp_path / folder, "states")
        folds.append(bundle.load(FOLD_FILE))
    names = components_of(bundle)
    first, second = ([Component(fold, n).graph_hash for n in names] for fold in folds)
    assert first == second
    assert len(set(first)) == len(first) > 1
    # preparing one component has changed neither the others nor the whole
    assert [Component(folds[0], n).graph_hash for n in reversed(names)] == first[::-1]


def test_functions_are_inlined(tmp_path):
    model = parse(
        """g (float[n, 8] x, float[8] r) => (float[n, 8] y) {
            t = local.twice(w)
            u = Mul(t, r)
            y = Add(x, u)
        }
        <domain: "local", opset_import: ["" : 21]>
        twice (a) => (b) { b = Add(a, a) }""",
        w=random(8),
    )
    bundle = bundle_of(model, tmp_path, "r", fold_at="runtime")
    assert [info.name for info in bundle.manifest.cached] == ["u"]
    feeds = {"x": random(3, 8), "r": random(8, seed=1)}
    (got,) = Session(bundle, cache=FoldCache()).run(None, feeds)
    np.testing.assert_array_equal(got, original(model, feeds)[0])


def test_a_file_is_opened_once_for_all_components(decoder, tmp_path, monkeypatch):
    bundle = bundle_of(decoder, tmp_path, "states", "mask")
    opened = []
    load = storage.load
    monkeypatch.setattr(storage, "load", lambda path: opened.append(path) or load(path))
    fold = bundle.load(FOLD_FILE)
    for names in components_of(bundle):
        Component(fold, names)
    assert len(components_of(bundle)) == 3 and len(opened) == 1


def test_a_weight_that_is_gone(compiled, decoder, tmp_path):
    """A damaged manifest: onnxruntime takes over."""
    bundle = bundle_of(decoder, tmp_path / "b", "states")
    manifest = json.loads((bundle.folder / "manifest.json").read_text())
    (bundle.folder / "kernels").mkdir()
    (bundle.folder / "kernels" / "k.onnx").write_bytes(b"")
    names = components_of(bundle)[0]
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
