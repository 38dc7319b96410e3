"""Test constant propagation in subgraphs and functions: captures, constant conditions, loops."""

import numpy as np
import onnx
import pytest
from fold_check import X, fold, large, parse, run, with_weights

import onnxfold


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
def test_a_branch_that_returns_one_value_twice(op):
    """onnxruntime does not write the first result, so a model with two ops is the reference."""
    model = two_results(f"p = {op} p2 = {op}")
    wanted = run(model, X)
    graph = branch(model)
    del graph.node[1]
    graph.output[1].name = "p"
    folded = fold(model)
    assert "If" not in folded.ops
    assert folded.outputs == ["y", "z"]
    assert [v.tolist() for v in run(folded.proto, X)] == [v.tolist() for v in wanted]


def test_equal_constants_in_branches_of_an_inlined_branch():
    """The result is stored once, in the graph that contains both branches after inlining."""
    model = parse(
        """g (float[2] x, bool f) => (float[2] y) <float[2, 2] w = {1, 2, 3, 4}, bool c = {1}> {
            y = If (c) <
                then_branch = t () => (float[2] u) {
                    u = If (f) <
                        then_branch = t1 () => (float[2] p) { a = Transpose (w) p = MatMul (x, a) },
                        else_branch = e1 () => (float[2] q) {
                            b = Transpose (w) d = MatMul (x, b) q = Neg (d)
                        }
                    >
                },
                else_branch = e () => (float[2] v) { v = Neg (x) }
            >
        }"""
    )
    for flag in (False, True):
        folded = fold(model, {**X, "f": np.array(flag)})
        assert folded.ops == {"If": 1, "MatMul": 2, "Neg": 1}


def test_an_if_with_an_unused_result():
    """The original model is valid, but onnxruntime can run only the folded model."""
    model = two_results("p = Add (x, w) p2 = Mul (x, w)")
    wanted = run(model, X)[0]
    model.graph.node[0].output[1] = ""
    del model.graph.output[1]
    folded = fold(model)
    assert folded.ops == {"Add": 1}
    assert run(folded.proto, X)[0].tolist() == wanted.tolist()


@pytest.mark.parametrize("op", ["Exp (x)", "Exp (w)"])
def test_a_branch_whose_output_is_a_value_of_the_outer_graph(op):
    """No node of the branch computes the output; a model with an Identity is the reference."""
    model = known_if("p = Identity (v)", before=f"v = {op}")
    wanted = run(model, X)[0]
    graph = branch(model)
    del graph.node[:]
    graph.output[0].name = "v"
    folded = fold(model)
    assert "If" not in folded.ops
    assert run(folded.proto, X)[0].tolist() == wanted.tolist()


@pytest.mark.parametrize("inside", ["p = Mul (x, k)", ""])
def test_a_branch_with_an_initializer_in_a_function(inside):
    """A function has no initializers, so an initializer of an inlined branch becomes a Constant."""
    model = parse(
        f"""g (float[2] x) => (float[2] y) {{ y = local.f (x) }}
        <domain: "local", opset_import: ["" : 21]> f (x) => (y) {{
            c = Constant <value = bool {{1}}> ()
            y = If (c) <
                then_branch = t () => (float[2] {"p" if inside else "k"})
                    <float[2] k = {{3, 4}}> {{ {inside} }},
                else_branch = e () => (float[2] q) {{ q = Neg (x) }}
            >
        }}"""
    )
    wanted = run(model, X)
    folded = fold(model)
    onnx.checker.check_model(folded.proto)
    assert "If" not in [node.op_type for node in folded.proto.functions[0].node]
    assert run(folded.proto, X)[0].tolist() == wanted[0].tolist()


def test_strings_in_a_chain():
    """If onnxruntime finds no locale, StringConcat is folded, but StringNormalizer is not."""
    folded = fold(
        """g () => (string[2] y) <string[2] a = {"x", "yz"}> {
            j = StringConcat (a, a)
            y = StringNormalizer <case_change_action = "UPPER", is_case_sensitive = 1> (j)
        }"""
    )
    wanted = {"y": ["XX", "YZYZ"]}
    if folded.ops:
        assert folded.ops == {"StringNormalizer": 1}
        assert "locale" in folded.reasons["StringNormalizer"]
        wanted = {"j": ["xx", "yzyz"]}
    found = {name: texts.tolist() for name, texts in folded.weights.items()}
    as_text = {k: [t.decode() if isinstance(t, bytes) else t for t in v] for k, v in found.items()}
    assert as_text == wanted


NESTED = """p = If (c) <
    then_branch = tt () => (float[2, N] a) { MADE a = MatMul (x, t) },
    else_branch = te () => (float[2, N] b) { MADE v = MatMul (x, t) b = Abs (v) }
>"""
MADE = {
    "view": "t = Transpose (w)",
    "elements": "t = Mul (w, w)",
    "elements twice, once for nothing": "t = Mul (w, w) e = Mul (w, w)",
    "fewer bits": "h = Cast <to = 3> (w) n = Neg (h) t = Cast <to = 1> (n)",
    "sizes of its own": "s = Constant <value_ints = [-1]> () f = Reshape (w, s) "
    "m = Neg (f) z = Shape (w) t = Reshape (m, z)",
    "an op of onnxruntime": "t = Softmax (w)",
}


@pytest.mark.parametrize("size", [6, 64])
@pytest.mark.parametrize("place", ["branch", "nested branch", "function"])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_equal_results_in_two_branches_are_stored_once(made, place, size):
    then = NESTED if place == "nested branch" else "MADE p = MatMul (x, t)"
    body = f"""r = If (c) <
        then_branch = t () => (float[2, N] p) {{ {then} }},
        else_branch = e () => (float[2, N] q) {{ MADE u = MatMul (x, t) q = Neg (u) }}
    > y = Abs (r)""".replace("MADE", made)
    inputs = f"float[2, {size}] x, bool c"
    if place == "function":
        function = f'<domain: "local", opset_import: ["" : 21]> f (x, c) => (y) {{ {body} }}'
        model = parse(f"g ({inputs}) => (float[2, {size}] y) {{ y = local.f (x, c) }} {function}")
        weight = onnx.numpy_helper.from_array(large(size, size))
        constant = onnx.helper.make_node("Constant", [], ["w"], value=weight)
        model.functions[0].node.insert(0, constant)
    else:
        model = parse(f"g ({inputs}) => (float[2, {size}] y) {{ {body} }}")
        model = with_weights(model, w=large(size, size))
    for c in (False, True):
        feeds = {"x": large(2, size, seed=1), "c": np.array(c)}
        folded = fold(model, feeds, max_growth=100)
        assert set(folded.ops) <= {"If", "MatMul", "Neg", "Abs", "Constant", "Cast", "f"}
        assert folded.proto.ByteSize() <= model.ByteSize()


@pytest.mark.parametrize("size", [6, 150])
@pytest.mark.parametrize("made", ["t = Softmax (w)", "m = Mul (w, w) t = Transpose (m)"])
@pytest.mark.parametrize("level", [0, 1])
def test_equal_results_from_equal_weights_of_branches_are_stored_once(made, size, level):
    then, otherwise = (made.replace("t =", f"{k}t =").replace("w", k) for k in "vu")
    model = parse(
        f"""g (float[2, {size}] x, bool c) => (float[2, {size}] y) {{
            y = If (c) <
                then_branch = t () => (float[2, N] p) {{ {then} p = MatMul (x, vt) }},
                else_branch = e () => (float[2, N] q) {{ {otherwise} q = MatMul (x, ut) }}
            >
        }}"""
    )
    graph = with_weights(model, v=large(size, size), u=large(size, size)).graph
    for branch_, name in zip(graph.node[0].attribute, "vu", strict=True):
        own = next(t for t in graph.initializer if t.name == name)
        branch_.g.initializer.append(own)
        graph.initializer.remove(own)
    optimized = onnxfold.optimize(model, level=level)
    assert optimized.ByteSize() < 4 * size * size + 1000
    onnxfold.compare(model, optimized, seeds=2).assert_equal()


@pytest.mark.parametrize("condition", [1, 0])
def test_an_if_with_more_outputs_than_its_branch(condition):
    model = known_if("p = Relu (x)", condition=condition)
    node = next(node for node in model.graph.node if node.op_type == "If")
    node.output.append("more")
    node.name = "choice"
    model.graph.output.append(onnx.helper.make_tensor_value_info("more", 1, None))
    with pytest.raises(
        onnxfold.ModelError, match=r"node 'choice': .*outputs, but its then_branch returns"
    ):
        onnxfold.optimize(model)


FUNCTION = (
    '<domain: "local", opset_import: ["" : 21]> F (x) => (a, b) { a = Cos (x) b = Shape (x) }'
)
LOOP = """a, y = Loop (n, "", k) <body = b (int64 i, bool q, bool s) => (bool q2, bool s2, float u)
    { q2 = Identity (q) s2 = Identity (s) dead = Sin (x) u = ReduceSum <keepdims = 0> (x) }>"""


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[0] v, int64[p] i) { v, i = TopK (x, z) }",
        "g (float[2] x) => (float[0] v, int64[p] j) { v, i = TopK (x, z) j = Neg (i) }",
        "g (float[2] x) => (float[2] a, int64[1] b) { a, b = local.F (x) }" + FUNCTION,
        "g (float[2] x) => (float[2] a, int64[1] c) { a, b = local.F (x) c = Neg (b) }" + FUNCTION,
        f"g (float[2] x) => (bool a, float[2] y) {{ {LOOP} }}",
        f"g (float[2] x) => (bool c, float[2] y) {{ {LOOP} c = Not (a) }}",
    ],
)
@pytest.mark.parametrize("level", [0, 1])
def test_constant_outputs_of_a_kept_node_are_not_stored(text, level):
    proto = with_weights(parse(text), z=np.zeros(1, np.int64), n=np.array(2), k=np.array(True))
    result = fold(proto, {"x": np.array([0.5, 2], np.float32)}, level=level)
    assert all(name for node in result.proto.graph.node for name in node.output)
    if "c = " not in text and "j = " not in text:  # otherwise, c or j is stored
        assert result.proto.ByteSize() <= result.before.ByteSize()


def test_constants_of_functions_may_be_in_another_file(tmp_path):
    text = """<ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
            d = local.Shifted (c) y = Add (x, d) }
        <domain: "local", opset_import: ["" : 17]> Shifted (a) => (b) {
            s = Constant <value = float[2] {3, 4}> () b = Sub (a, s) }"""
    model = onnx.parser.parse_model(text)
    path = tmp_path / "m.onnx"
    tensor = model.functions[0].node[0].attribute[0].t
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)))
    place = {"location": "data", "size_threshold": 0, "convert_attribute": True}
    onnx.save(model, path, save_as_external_data=True, **place)
    assert tensor.data_location == onnx.TensorProto.EXTERNAL
    onnxfold.optimize_file(path, tmp_path / "out.onnx", level=0)
    made = onnx.load(tmp_path / "out.onnx")
    assert [node.op_type for node in made.graph.node] == ["Add"]
    feeds = {"x": np.array([5, 6], np.float32)}
    np.testing.assert_array_equal(run(made, feeds)[0], run(onnx.parser.parse_model(text), feeds)[0])


def test_bodies_of_other_domains_keep_their_names():
    """onnxruntime's BeamSearch requires certain names of values in its body.

    Outer values may have the same names.
    """
    body = "b (float[2] x) => (float[2] z) { w = Exp(x) z = Neg(w) }"
    nodes = f"w = Abs(x) y = com.microsoft.BeamSearch<decoder = {body}>(w)"
    made = onnxfold.optimize(parse(f"g (float[2] x) => (float[2] y) {{ {nodes} }}"))
    graph = made.graph.node[-1].attribute[0].g
    assert [graph.input[0].name, *graph.node[0].output] == ["x", "w"]
