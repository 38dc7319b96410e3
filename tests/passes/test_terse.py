"""What is new in a model is named and described as far as the file does not grow by it."""

from __future__ import annotations

import onnx
from fold_check import parse

import onnxfold

CLIPS = """g (float[3] input) => (float[3] output) <float low = {0}, float high = {6}> {
    once = Clip (input, low)
    [second] output = Clip (once, "", high)
}"""


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    optimized = onnxfold.optimize(model)
    onnx.checker.check_model(optimized)
    [node] = optimized.graph.node
    assert (node.op_type, node.name) == ("Clip", "second")
    return optimized


def test_new_values_have_short_names_where_the_file_would_grow():
    model = parse(CLIPS)
    optimized = rewritten(model)
    assert optimized.ByteSize() <= model.ByteSize()
    assert not optimized.graph.node[0].metadata_props
    names = {t.name for t in optimized.graph.initializer}
    assert names <= {"low", "high", "c0", "c1"}


def test_nodes_say_where_they_come_from_where_there_is_room():
    model = parse(CLIPS)
    model.graph.node[0].doc_string = "clips what is below " * 20
    [node] = rewritten(model).graph.node
    assert {p.key for p in node.metadata_props} == {"onnxfold.rule", "onnxfold.from"}
