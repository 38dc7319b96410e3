"""Test the removal of dead code."""

import numpy as np
import onnx_ir as ir
from call_count import calls_of
from fold_check import fold, parse
from model_table import TEXTS
from onnx_ir.passes import common

import onnxfold
from onnxfold.ir import storage
from onnxfold.ir.editing import remove_unused
from onnxfold.ir.graphs import all_graphs
from onnxfold.passes.cleanups import RemoveDeadCode
from onnxfold.passes.simplify import Simplify


def test_branches_of_an_unused_node_do_not_keep_their_operands():
    opened = storage.from_proto(parse(TEXTS["an unused If of outer values"]))
    x, c = opened.graph.inputs
    assert RemoveDeadCode()(opened).modified
    assert [node.op_type for node in opened.graph] == ["Neg"]
    # nodes of removed branches are not users
    assert [use.node.op_type for use in x.uses()] == ["Neg"]
    assert not c.uses()
    assert not RemoveDeadCode()(opened).modified


def test_users_outside_the_model_are_ignored():
    """onnx-ir's pass removes the If, but nodes of the removed branches remain users of values."""
    text = TEXTS["an unused If of outer values"]
    opened = storage.from_proto(parse(text.replace("Neg (x)\n}", "Neg (b)\n}")))
    assert common.RemoveUnusedNodesPass()(opened).modified
    assert ir.passes.Sequential(Simplify(), RemoveDeadCode())(opened).modified
    assert [node.op_type for node in opened.graph] == ["Exp", "Exp", "Neg"]
    assert [use.node.op_type for use in opened.graph[1].outputs[0].uses()] == ["Neg"]


def test_nodes_of_a_subgraph_are_removed_with_its_node():
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) {
            a = Exp (x)
            dead = If (c) <
                then_branch = t () => (float[2] p) { q = Neg (a)  p = Abs (q)  lost = Exp (q) },
                else_branch = e () => (float[2] r) { r = Abs (a) }
            >
            y = Neg (x)
        }"""
    )
    opened = storage.from_proto(model)
    graphs = list(all_graphs(opened))
    # `remove_unused` begins with the last node: it visits the inner nodes before their If
    order = [node for graph in graphs for node in graph]
    remove_unused(order)
    assert [node.op_type for node in opened.graph] == ["Neg"]
    assert sum(node.graph is None for node in order) == len(order) - 1
    assert len(opened.graph.inputs[0].uses()) == 1


def test_removal_with_many_outputs_takes_linear_time():
    def work(count: int) -> int:
        pairs = " ".join(f"y{k} = Neg (x) z{k} = Abs (y{k})" for k in range(count))
        results = ", ".join(f"float[2] y{k}" for k in range(count))
        opened = storage.from_proto(parse(f"g (float[2] x) => ({results}) {{ {pairs} }}"))
        calls = calls_of(lambda: remove_unused(list(opened.graph)))
        assert len(opened.graph) == count
        return calls

    work(10)
    assert work(1000) < 12 * work(100)


def test_a_used_node_keeps_all_its_outputs_and_inputs():
    """The results of a kernel may depend on the set of used outputs.

    Examples are Attention without the scores, and MaxPool without the indices.
    """
    model = parse(
        """g (float[1, 2, 4, 8] q, float[1, 2, 3, 8] p, float[1, 1, 6] x, float[2] s, int64 n)
            => (float[1, 2, 4, 8] y, float[1, 1, 4] z, float[2] b, float[2] l) {
            y, k, v, scores = Attention (q, q, q, "", p, p)
            z, indices = MaxPool <kernel_shape = [3]> (x)
            b, mean, var = BatchNormalization <training_mode = 1> (s, s, s, s, s)
            l = Loop (n, "") <body = t (int64 i, bool go) => (bool on, float[2] u) {
                on = Identity (go)
                u = Identity (s)
            }>
        }""",
        opset=23,
    )
    after = onnxfold.optimize(model, passes=["dead-code"])
    assert [list(n.output) for n in after.graph.node] == [list(n.output) for n in model.graph.node]
    assert [list(n.input) for n in after.graph.node] == [list(n.input) for n in model.graph.node]


def test_a_maxpool_of_nan_with_unused_indices_keeps_its_bits():
    model = parse(
        "g (float[1, 1, 6] x) => (float[1, 1, 4] y) { y, i = MaxPool <kernel_shape = [3]> (x) }"
    )
    image = np.array([[[1, np.nan, 2, 3, 4, 0]]], np.float32)
    for level in (0, 1, 2):
        fold(model, {"x": image}, level=level)
