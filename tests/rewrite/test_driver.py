import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_table import graph
from onnxfold.rules import transposes

import onnxfold
from onnxfold.api.options import Options
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import Attribute, RuleSet, op, rule, where
from onnxfold.testing import certify

F32 = np.float32


@rule
def double_negation(x):
    return op.Neg(op.Neg(x)) >> x


RULES = RuleSet("test", (double_negation,))


def simplified(proto, rules=RULES, **options):
    model = ir.from_proto(proto)
    simplify = Simplify([rules], options=Options(**options))
    simplify(model)
    onnx.checker.check_model(ir.to_proto(model))
    return model, simplify.report


def parsed(text, opset=17, functions=""):
    header = f'<ir_version: 10, opset_import: ["": {opset}, "f": 1]>'
    return onnx.parser.parse_model(header + text + functions)


def ops(model):
    return [node.op_type for node in model.graph.all_nodes()]


def test_graph_outputs_keep_their_names():
    both = "g (float[N] x) => (float[N] y) { t = Relu(x) s = Neg(t) y = Neg(s) }"
    model, _ = simplified(parsed(both))
    assert ops(model) == ["Relu"] and model.graph.outputs[0].name == "y"
    of_input = "g (float[N] x) => (float[N] y) { s = Neg(x) y = Neg(s) }"
    model, _ = simplified(parsed(of_input))
    assert ops(model) == ["Identity"] and model.graph.outputs[0].name == "y"
    twice = "g (float[N] x) => (float[N] t, float[N] y) { t = Relu(x) s = Neg(t) y = Neg(s) }"
    model, _ = simplified(parsed(twice))
    assert sorted(ops(model)) == ["Identity", "Relu"]
    assert [v.name for v in model.graph.outputs] == ["t", "y"]


def test_an_intermediate_graph_output_is_kept():
    text = "g (float[N] x) => (float[N] s, float[N] y) { s = Neg(x) t = Neg(s) y = Relu(t) }"
    model, report = simplified(parsed(text))
    assert report.counts.total() == 1 and ops(model) == ["Neg", "Relu"]


def test_intermediates_with_other_users():
    pushed = rule(lambda x: op.Transpose(op.Relu(x)) >> op.Relu(op.Transpose(x)))
    shared = rule(shared=True)(lambda x: op.Transpose(op.Relu(x)) >> op.Relu(op.Transpose(x)))
    text = """g (float[N,2] x) => (float[2,N] y, float[N,2] z) {
        t = Relu(x) y = Transpose(t) z = Neg(t) }"""
    _, report = simplified(parsed(text), RuleSet("test", (pushed,)))
    assert not report.counts.total(), "it would add a node"
    model, report = simplified(parsed(text), RuleSet("test", (shared,)))
    assert report.counts.total() == 1 and len(ops(model)) == 4
    single = parsed("g (float[N,2] x) => (float[2,N] y) { t = Relu(x) y = Transpose(t) }")
    assert simplified(single, RuleSet("test", (pushed,)))[1].counts.total() == 1


def test_outer_values_are_matched_inside_a_subgraph():
    text = """g (float[N] x, bool b) => (float[N] y) {
        s = Neg(x)
        y = If (b) <
            then_branch = t () => (float[N] u) { v = Neg(s) u = Relu(v) },
            else_branch = e () => (float[N] w) { w = Abs(s) }
        >
    }"""
    model, report = simplified(parsed(text))
    assert report.counts.total() == 1
    branch = next(n for n in model.graph if n.op_type == "If").attributes["then_branch"].as_graph()
    assert [n.op_type for n in branch] == ["Relu"] and branch[0].inputs[0].name == "x"


def test_work_is_not_moved_into_a_subgraph():
    grow = rule(lambda x: op.Relu(op.Neg(x)) >> op.Neg(op.Min(x, 0)))
    text = """g (float[N] x, bool b) => (float[N] y) {
        s = Neg(x)
        y = If (b) <
            then_branch = t () => (float[N] u) { u = Relu(s) },
            else_branch = e () => (float[N] w) { w = Abs(x) }
        >
    }"""
    _, report = simplified(parsed(text), RuleSet("test", (grow,)))
    assert not report.counts.total()


@pytest.mark.parametrize(("opset", "count"), [(17, 2), (18, 0)])
def test_functions_get_constant_nodes_instead_of_initializers(opset, count):
    """Functions with another opset are not rewritten: onnxruntime uses the opset of the model."""
    text = "g (float[N] x) => (float[N] y) { y = f.F(x) }"
    function = f"""<domain: "f", opset_import: ["": {opset}]> F (v) => (w) {{
        a = Cast<to=1>(v) b = Neg(a) c = Neg(b) w = Relu(c) }}"""
    tested_rule = rule(lambda x: op.Relu(op.Cast(x, to=1)) >> op.Max(op.Cast(x, to=1), 0))
    model, report = simplified(
        parsed(text, functions=function), RuleSet("test", (double_negation, tested_rule))
    )
    body = next(iter(model.functions.values()))
    assert [n.op_type for n in body] == ["Cast", "Constant", "Max"] or not count
    assert body.outputs[0].name == "w" and report.counts.total() == count


def test_a_loop_body():
    text = """g (float[2] x, int64 n) => (float[2] y) {
        cond = Constant<value = bool {1}>()
        y = Loop (n, cond, x) <body = b (int64 i, bool c, float[2] s) => (bool c2, float[2] o) {
            c2 = Identity(c) t = Neg(s) u = Neg(t) o = Sin(u)
        }>
    }"""
    model, report = simplified(parsed(text))
    assert report.counts.total() == 1 and "Neg" not in ops(model)


def test_chains_are_simplified_in_linear_time():
    # at each node, the chain before it is already simplified
    count = 2000
    nodes = [f"t{k + 1} = Transpose<perm=[1,2,0]>(t{k})" for k in range(count)]
    proto = graph("float[A,B,C] t0", *nodes)
    model, report = simplified(proto, RuleSet("test", (transposes.transpose_of_transpose,)))
    assert ops(model) == ["Transpose"] and report.counts.total() == count - 1
    assert report.visits < 4 * count


def test_a_value_with_many_users_takes_linear_time():
    count = 2000
    nodes = [f"n{k} = Neg(t)\n m{k} = Neg(n{k})\n s{k} = Relu(m{k})" for k in range(count)]
    last = f"y = Sum({', '.join(f's{k}' for k in range(count))})"
    model, report = simplified(graph("float[N] x", "t = Abs(x)", *nodes, last))
    assert report.counts.total() == count and len(ops(model)) == count + 2
    assert report.visits < 8 * count


def test_rules_that_undo_each_other_are_reported(caplog):
    @rule
    def forward(x):
        return op.Neg(op.Relu(x)) >> op.Mul(op.Relu(x), -1)

    @rule
    def backward(x):
        return op.Mul(op.Relu(x), -1) >> op.Neg(op.Relu(x))

    proto = parsed("g (float[N] x) => (float[N] y) { t = Relu(x) y = Neg(t) }")
    with caplog.at_level(logging.INFO, logger="onnxfold"):
        model, report = simplified(proto, RuleSet("test", (forward, backward)))
    assert [set(loop.rules) for loop in report.loops] == [{"forward", "backward"}]
    assert report.loops[0].value == "y" and "forward" in caplog.text
    assert report.counts.total() == 500 and len(ops(model)) == 2


def test_a_rule_that_always_adds_nodes_ends():
    grows = rule(lambda x: op.Neg(x) >> op.Neg(op.Neg(op.Neg(x))))
    proto = parsed("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    _, report = simplified(proto, RuleSet("test", (grows,)))
    assert report.loops and report.counts.total() == 500


def test_provenance():
    proto = parsed("g (float[N,2] x) => (float[N,2] y) { t = Transpose(x) y = Transpose(t) }")
    for node in proto.graph.node:
        node.name = f"node_{node.output[0]}"
    proto.graph.node[1].doc_string = "kept"
    proto.graph.node[1].metadata_props.add(key="mine", value="too")
    rules = RuleSet("test", (transposes.transpose_of_transpose,))
    model, _ = simplified(proto, rules)
    (node,) = model.graph
    assert node.name == "node_y" and node.doc_string == "kept"
    assert node.metadata_props["onnxfold.rule"] in (
        "transpose_of_transpose",
        transposes.transpose_of_transpose.location,
    )
    assert node.metadata_props["onnxfold.from"] == "node_y, node_t"
    assert node.metadata_props["mine"] == "too"


def test_new_names_are_unique_and_readable():
    tested_rule = rule(inexact=True)(lambda x: op.Neg(op.Relu(x)) >> op.Min(op.Neg(x), op.Abs(x)))
    text = "g (float[N] x) => (float[N] y) { t = Relu(x) y = Neg(t) }"
    model, _ = simplified(parsed(text), RuleSet("test", (tested_rule,)), level=2)
    assert [o.name for n in model.graph for o in n.outputs] == ["y/Neg", "y/Abs", "y"]


def test_keep_and_disable():
    proto = parsed("g (float[N] x) => (float[N] y) { t = Relu(x) s = Neg(t) y = Neg(s) }")
    _, report = simplified(proto, keep=("s",))
    assert not report.counts.total()
    for name in ("test", "double_negation"):
        assert not simplified(proto, disable=[name])[1].counts.total()
    with pytest.raises(Exception, match="neither a rule nor a rule set"):
        Simplify([RULES], options=Options(disable=["nothing"]))


def test_optional_sets_and_targets():
    proto = parsed("g (float[N] x) => (float[N] y) { t = Relu(x) s = Neg(t) y = Neg(s) }")
    optional = RuleSet("extra", (double_negation,), optional=True)
    assert not simplified(proto, optional)[1].counts.total()
    assert simplified(proto, optional, enable=["extra"])[1].counts.total() == 1


def test_benefit_orders_rules():
    default = rule(lambda x: op.Neg(op.Neg(x)) >> op.Identity(x))

    @rule(benefit=1)
    def preferred(x):
        return op.Neg(op.Neg(x)) >> x

    proto = parsed("g (float[N] x) => (float[N] y) { t = Relu(x) s = Neg(t) y = Neg(s) }")
    _, report = simplified(proto, RuleSet("test", (default, preferred)))
    assert report.counts == {"preferred": 1}


def test_stale_value_info_is_ignored():
    @rule
    def half(x, p: Attribute):
        return op.Cast(op.Neg(x), to=p) >> op.Neg(x), where(x.dtype == p)

    proto = graph("float[N] x", "t = Neg(x)", "y = Cast<to=10>(t)")
    stale = onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT16, ["N"])
    proto.graph.value_info.append(stale)
    assert not simplified(proto, RuleSet("test", (half,)))[1].counts.total()
    certify(half, "(float[N] x) t = Neg(x) y = Cast<to=1>(t)", thorough=False)


def test_removing_a_node_with_a_subgraph_removes_its_uses():
    text = """g (float[N] x, bool b) => (float[N] y) {
        s = Abs(x)
        t = If (b) <
            then_branch = t () => (float[N] u) { u = Relu(s) },
            else_branch = e () => (float[N] w) { w = Neg(s) }
        >
        z = Concat<axis=0>(x)
        y = Sub(z, z)
        unused = Neg(t)
    }"""

    tested_rule = rule(lambda x: op.Concat(x, axis=0) >> x)
    model, _ = simplified(parsed(text), RuleSet("test", (tested_rule,)))
    assert "Concat" not in ops(model)


def test_the_default_domain_named_ai_onnx():
    text = "g (float[N] x) => (float[N] y) { t = Relu(x) s = Neg(t) y = Neg(s) }"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["ai.onnx": 17]>{text}')
    model, report = simplified(proto)
    assert report.counts.total() == 1 and model.graph.opset_imports == {"ai.onnx": 17}


def test_new_nodes_record_their_rule_and_sources():
    text = ("a = Transpose<perm=[1,0,2]>(x)", "b = Transpose<perm=[0,2,1]>(a)", "y = Exp(b)")
    optimized = onnxfold.optimize(graph("float[2,3,4] x", *text))
    assert [node.op_type for node in optimized.graph.node] == ["Transpose", "Exp"]
    metadata = {p.key: p.value for p in optimized.graph.node[0].metadata_props}
    assert metadata["onnxfold.rule"] == "transpose_of_transpose" and metadata["onnxfold.from"]
