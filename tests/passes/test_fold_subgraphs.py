"""Constants and subgraphs: outer values flow in, a known If goes, constant loops are computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fold_check import X, assert_same, fold, large, parse, run, with_weights

import onnxfold

YES = {**X, "c": np.array(True)}
NO = {**X, "c": np.array(False)}


def test_outer_constants_flow_into_both_branches():
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
            n = Neg (w)
            y = If (c) <
                then_branch = t () => (float[2] p) { a = Exp (n) p = Add (x, a) },
                else_branch = e () => (float[2] q) { b = Abs (n) q = Mul (x, b) }
            >
        }"""
    )
    for feeds in (YES, NO):
        folded = fold(model, feeds)
    assert folded.ops == {"If": 1, "Add": 1, "Mul": 1}
    assert list(folded.weights) == []


def test_a_constant_result_of_a_branch_is_still_made_by_a_node_there():
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
            y = If (c) <
                then_branch = t () => (float[2] p) { p = Exp (w) },
                else_branch = e () => (float[2] q) { q = Add (x, w) }
            >
        }"""
    )
    for feeds in (YES, NO):
        folded = fold(model, feeds, max_growth=64)
    assert "Exp" not in folded.ops


def test_a_loop_with_a_variable_input_keeps_its_body_but_not_the_constants_in_it():
    model = parse(
        """g (float[2] x, int64 n) => (float[2] y) <float[2] w = {1, 2}> {
            more = Constant <value = bool {1}> ()
            y = Loop (n, more, x) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2)
                { v = Neg (w) u = Abs (v) k2 = Identity (k) s2 = Add (s, u) }>
        }"""
    )
    folded = fold(model, {**X, "n": np.array(3)})
    assert "Neg" not in folded.ops
    assert "Abs" not in folded.ops
    assert folded.ops["Loop"] == 1


# ---------------------------------------------------------------- If with a known condition


def known_if(then: str, otherwise: str = "q = Abs (x)", *, before: str = "", condition: int = 1):
    return parse(
        f"""g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}, bool c = {{{condition}}}> {{
            {before}
            r = If (c) <
                then_branch = t () => (float[2] p) {{ {then} }},
                else_branch = e () => (float[2] q) {{ {otherwise} }}
            >
            y = Neg (r)
        }}"""
    )


def branch(model: onnx.ModelProto, name: str = "then_branch") -> onnx.GraphProto:
    node = next(n for n in model.graph.node if n.op_type == "If")
    return next(a.g for a in node.attribute if a.name == name)


@pytest.mark.parametrize(("condition", "op"), [(1, "Exp"), (0, "Abs")])
def test_the_branch_that_is_taken_takes_its_place(condition, op):
    folded = fold(known_if("p = Exp (x)", condition=condition), X)
    assert folded.ops == {op: 1, "Neg": 1}


def test_a_condition_that_has_to_be_computed():
    """Erf, MatMul and ReduceSum are onnxruntime's to compute."""
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float zero = {0}> {
            e = Erf (w)
            s = ReduceSum <keepdims = 0> (e)
            c = Greater (s, zero)
            y = If (c) <
                then_branch = t () => (float[2] p) { p = Exp (x) },
                else_branch = f () => (float[2] q) { q = Abs (x) }
            >
        }"""
    )
    assert fold(model, X).ops == {"Exp": 1}


def test_initializers_of_the_branch_come_along_and_fold():
    model = known_if("a = Add (w, k) p = Mul (x, a)")
    weight = onnx.numpy_helper.from_array(np.float32([3, 4]), "k")
    branch(model).initializer.append(weight)
    folded = fold(model, X)
    assert folded.ops == {"Mul": 1, "Neg": 1}


def test_names_of_the_branch_that_the_model_uses_elsewhere():
    """Legal in ONNX as long as the graphs do not see each other; after inlining they do."""
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, bool c = {1}> {
            r = If (c) <
                then_branch = t () => (float[2] p)
                    { late = Exp (x) k2 = Add (late, k) p = Neg (k2) },
                else_branch = e () => (float[2] q) { q = Abs (x) }
            >
            late = Sqrt (w)
            k2 = Add (r, late)
            y = Neg (k2)
        }"""
    )
    branch(model).initializer.append(onnx.numpy_helper.from_array(np.float32([3, 4]), "k"))
    folded = fold(model, X)
    assert folded.ops == {"Exp": 1, "Add": 2, "Neg": 2}
    made = [name for node in folded.proto.graph.node for name in node.output]
    assert len(made) == len(set(made))


def test_two_ifs_with_the_same_names_inside():
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, bool c = {1}> {
            r = If (c) <
                then_branch = t () => (float[2] p) { a = Exp (x) p = Add (a, w) },
                else_branch = e () => (float[2] q) { q = Abs (x) }
            >
            y = If (c) <
                then_branch = t2 () => (float[2] p) { a = Sin (r) p = Mul (a, w) },
                else_branch = e2 () => (float[2] q) { q = Abs (r) }
            >
        }"""
    )
    assert fold(model, X).ops == {"Exp": 1, "Add": 1, "Sin": 1, "Mul": 1}


def test_an_if_in_an_if():
    inner = """p = If (c) <
        then_branch = tt () => (float[2] pp) { v = Neg (w) pp = Add (x, v) },
        else_branch = te () => (float[2] qq) { qq = Exp (x) }
    >"""
    assert fold(known_if(inner), X).ops == {"Add": 1, "Neg": 1}


def test_an_if_in_a_branch_that_stays():
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}, bool known = {0}> {
            y = If (c) <
                then_branch = t () => (float[2] p) {
                    p = If (known) <
                        then_branch = tt () => (float[2] pp) { pp = Exp (x) },
                        else_branch = te () => (float[2] qq) { v = Neg (w) qq = Add (x, v) }
                    >
                },
                else_branch = e () => (float[2] q) { q = Abs (x) }
            >
        }"""
    )
    for feeds in (YES, NO):
        folded = fold(model, feeds)
    assert folded.ops["If"] == 1
    assert "Exp" not in folded.ops


def test_a_branch_that_gives_its_initializer():
    model = known_if("a = Neg (x)")
    graph = branch(model)
    graph.initializer.append(onnx.numpy_helper.from_array(np.float32([3, 4]), "p"))
    assert fold(model, X).ops == {}


def test_a_branch_that_gives_an_outer_value():
    """ONNX wants an output to be made inside, so there is an Identity."""
    folded = fold(known_if("p = Identity (v)", before="v = Exp (x)"), X)
    assert folded.ops["Exp"] == 1
    assert "If" not in folded.ops
    constant = fold(known_if("p = Identity (v)", before="v = Exp (w)"), X)
    assert constant.ops == {}


def two_results(inside: str) -> onnx.ModelProto:
    return parse(
        f"""g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {{1, 2}}, bool c = {{1}}> {{
            y, z = If (c) <
                then_branch = t () => (float[2] p, float[2] p2) {{ {inside} }},
                else_branch = e () => (float[2] q, float[2] q2) {{ q = Abs (x) q2 = Neg (x) }}
            >
        }}"""
    )


@pytest.mark.parametrize("op", ["Exp (x)", "Exp (w)"])
def test_a_branch_that_gives_one_value_twice(op):
    """onnxruntime leaves the first of the two results unwritten, so two ops say what is right."""
    model = two_results(f"p = {op} p2 = {op}")
    wanted = run(model, X)
    graph = branch(model)
    del graph.node[1]
    graph.output[1].name = "p"
    folded = fold(model)
    assert "If" not in folded.ops
    assert folded.outputs == ["y", "z"]
    assert [v.tolist() for v in run(folded.proto, X)] == [v.tolist() for v in wanted]


def test_results_of_an_if_that_are_graph_outputs_keep_their_names():
    folded = fold(two_results("p = Add (x, w) p2 = Mul (x, w)"), X)
    assert folded.outputs == ["y", "z"]
    assert folded.ops == {"Add": 1, "Mul": 1}


def test_an_if_whose_results_are_not_all_used():
    """Legal, though onnxruntime cannot run it before it is folded."""
    model = two_results("p = Add (x, w) p2 = Mul (x, w)")
    wanted = run(model, X)[0]
    model.graph.node[0].output[1] = ""
    del model.graph.output[1]
    folded = fold(model)
    assert folded.ops == {"Add": 1}
    assert run(folded.proto, X)[0].tolist() == wanted.tolist()


# ---------------------------------------------------------------- loops


def test_a_loop_over_constants_is_computed():
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, int64 n = {3}, bool more = {1}> {
            v, scan = Loop (n, more, w) <
                body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2, float[2] o)
                { k2 = Identity (k) s2 = Add (s, w) o = Neg (s2) }
            >
            last = Constant <value = int64[1] {2}> ()
            axis = Constant <value = int64[1] {0}> ()
            row = Gather (scan, last)
            flat = Squeeze (row, axis)
            a = Add (x, v)
            y = Add (a, flat)
        }"""
    )
    folded = fold(model, X)
    assert folded.ops == {"Add": 2}
    assert folded.outcome.statistics.materialized == 2


def test_a_scan_over_constants_is_computed():
    model = parse(
        """g (float[2] x) => (float[3, 2] y) {
            total, rows = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] row)
                => (float[2] s2, float[2] o) { s2 = Add (s, row) o = Exp (s2) }> (start, table)
            v = Add (rows, total)
            y = Add (x, v)
        }"""
    )
    with_weights(model, start=np.zeros(2, np.float32), table=large(3, 2))
    assert fold(model, X).ops == {"Add": 1}


def test_a_loop_that_does_not_run():
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, int64 n = {0}, bool more = {1}> {
            v = Loop (n, more, w) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2)
                { k2 = Identity (k) s2 = Add (s, w) }>
            y = Add (x, v)
        }"""
    )
    assert fold(model, X).ops == {"Add": 1}


def test_a_random_loop_stays():
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, int64 n = {3}, bool more = {1}> {
            v = Loop (n, more, w) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2)
                { k2 = Identity (k) r = RandomNormalLike (s) s2 = Add (s, r) }>
            y = Add (x, v)
        }"""
    )
    folded = fold(model)
    assert folded.ops["Loop"] == 1
    assert "RandomNormalLike" in folded.reasons["Loop"]


def test_a_loop_of_constants_inside_a_branch():
    model = parse(
        """g (float[2] x, bool c) => (float[2] y)
            <float[2] w = {1, 2}, int64 n = {3}, bool more = {1}> {
            y = If (c) <
                then_branch = t () => (float[2] p) {
                    v = Loop (n, more, w) <
                        body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2)
                        { k2 = Identity (k) s2 = Add (s, w) }>
                    p = Add (x, v)
                },
                else_branch = e () => (float[2] q) { q = Abs (x) }
            >
        }"""
    )
    folded = fold(model)
    for feeds in (YES, NO):
        assert_same(folded.before, folded.proto, feeds)
    assert folded.ops == {"If": 1, "Add": 1, "Abs": 1}


def test_sequences_inside_a_constant_region():
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
            parts = SequenceConstruct (a, b)
            k = Constant <value = int64 {1}> ()
            more = SequenceInsert (parts, a, k)
            v = SequenceAt (more, k)
            n = SequenceLength (more)
            f = Cast <to = 1> (n)
            s = Add (x, v)
            y = Mul (s, f)
        }"""
    )
    folded = fold(model, X)
    assert folded.ops == {"Add": 1, "Mul": 1}


def test_a_sequence_that_the_rest_needs_stays():
    model = parse(
        """g (float[2] x, int64 k) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
            n = Neg (b)
            parts = SequenceConstruct (a, n)
            v = SequenceAt (parts, k)
            y = Add (x, v)
        }"""
    )
    folded = fold(model, {**X, "k": np.array(1)})
    assert folded.ops == {"SequenceConstruct": 1, "SequenceAt": 1, "Add": 1}
    assert folded.reasons == {"SequenceConstruct": "its result is not a tensor"}


@pytest.mark.parametrize("op", ["Exp (x)", "Exp (w)"])
def test_a_branch_whose_output_is_a_value_of_the_outer_graph(op):
    """No node of the branch makes it; the same model with an Identity says what is right."""
    model = known_if("p = Identity (v)", before=f"v = {op}")
    wanted = run(model, X)[0]
    graph = branch(model)
    del graph.node[:]
    graph.output[0].name = "v"
    folded = fold(model)
    assert "If" not in folded.ops
    assert run(folded.proto, X)[0].tolist() == wanted.tolist()


def test_a_string_op_of_the_reference_evaluator_in_a_chain():
    """onnxruntime joins the strings; where it lacks a locale, the other changes their case."""
    model = parse(
        """g () => (string[2] y) {
            j = StringConcat (a, b)
            y = StringNormalizer <case_change_action = "UPPER", is_case_sensitive = 1> (j)
        }"""
    )
    for name in "ab":
        tensor = onnx.helper.make_tensor(name, 8, [2], [b"x", b"yz"])
        with_weights(model, **{name: tensor})
    folded = fold(model)
    assert folded.ops == {}
    texts = folded.weights["y"].tolist()
    assert [t.decode() if isinstance(t, bytes) else t for t in texts] == ["XX", "YZYZ"]


def test_a_loop_that_onnxruntime_refuses_stays():
    """onnxruntime has no Abs of bfloat16; onnx stacks the numbers to a column."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g () => (bfloat16[2] y) <int64 n = {2}, bool c = {1}, bfloat16 s = {10}> {
            last, y = Loop (n, c, s) <body = b (int64 i, bool going, bfloat16 p)
                => (bool goes, bfloat16 q, bfloat16 r) {
                    goes = Identity (going) q = Abs (p) r = Identity (p) }>
        }""")
    folded = onnxfold.optimize(model, fold_all=True)
    assert [node.op_type for node in folded.graph.node] == ["Loop"]
