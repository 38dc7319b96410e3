"""What nothing uses goes, at every level; the model's inputs and outputs stay."""

from __future__ import annotations

import numpy as np
import onnx
from fold_check import X, fold, parse, with_weights

from onnxfold import storage
from onnxfold.passes.dead_code import RemoveDeadCode


def clean(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    opened = storage.from_proto(model)
    modified = RemoveDeadCode()(opened).modified
    after = storage.to_proto(opened)
    onnx.checker.check_model(after)
    return after, modified


def test_nodes_initializers_and_functions_that_nobody_uses():
    model = parse(
        """g (float[2] x, float[2] ignored) => (float[2] y) <float[2] w = {1, 2}> {
            a = Exp (x)
            b = Add (a, w)
            y = Neg (x)
        }
        <domain: "local", opset_import: ["" : 21]> unused (a) => (z) { z = Neg (a) }"""
    )
    after, modified = clean(model)
    assert modified
    assert [n.op_type for n in after.graph.node] == ["Neg"]
    assert not after.graph.initializer
    assert not after.functions
    assert [i.name for i in after.graph.input] == ["x", "ignored"]
    assert clean(after)[1] is False


def test_an_unused_input_with_a_default_stays():
    model = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Neg (x) }")
    after, _ = clean(with_weights(model, w=np.float32([1, 2])))
    assert [i.name for i in after.graph.input] == ["x", "w"]
    assert [t.name for t in after.graph.initializer] == ["w"]


def test_an_initializer_that_is_an_output_stays():
    model = parse("g (float[2] x) => (float[2] y, float[2] w) { y = Neg (x) }")
    after, _ = clean(with_weights(model, w=np.float32([1, 2])))
    assert [t.name for t in after.graph.initializer] == ["w"]


def test_unused_initializers_of_subgraphs():
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] p) { p = Add (x, k) },
                else_branch = e () => (float[2] q) { q = Neg (x) }
            >
        }"""
    )
    for attribute in model.graph.node[0].attribute:
        attribute.g.initializer.append(onnx.numpy_helper.from_array(np.float32([1, 2]), "k"))
    after, modified = clean(model)
    assert modified
    assert [len(a.g.initializer) for a in after.graph.node[0].attribute] == [1, 0]


def test_weights_of_folded_nodes_go_too():
    folded = fold(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] unused = {3, 4}> {
            v = Neg (w)
            u = Exp (v)
            y = Add (x, v)
        }""",
        X,
    )
    assert list(folded.weights) == ["v"]
