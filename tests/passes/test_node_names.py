"""Test that optimized models have unique node names in each graph, as onnxruntime requires."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fold_check import assert_same, parse, run

import onnxfold

X = {"x": np.array([1, -2], np.float32)}
FLAG = {**X, "f": np.array(True)}

TAKEN = "then_branch = t () => (float[2] p) { [n] p = MatMul (%s, w) }"
OTHER = "else_branch = e () => (float[2] q) { [n] q = Neg (%s) }"
BRANCHES = f"{TAKEN}, {OTHER}"
WEIGHTS = "<float[2, 2] w = {1, 2, 3, 4}, bool c = {1}, int64 three = {3}>"

# Each model repeats node names in several graphs.
MODELS = {
    "outer node before the If": f"""g (float[2] x) => (float[2] y, float[2] z) {WEIGHTS} {{
        [n] y = MatMul (x, w)
        z = If (c) <{BRANCHES % ("y", "y")}>
    }}""",
    "outer node after the If": f"""g (float[2] x) => (float[2] y) {WEIGHTS} {{
        z = If (c) <{BRANCHES % ("x", "x")}>
        [n] y = MatMul (z, w)
    }}""",
    "two branches": f"""g (float[2] x) => (float[2] y) {WEIGHTS} {{
        [if] a = If (c) <{BRANCHES % ("x", "x")}>
        [also] y = If (c) <{BRANCHES % ("a", "a")}>
    }}""",
    "nested branches": f"""g (float[2] x) => (float[2] y) {WEIGHTS} {{
        [n] a = Exp (x)
        [if] y = If (c) <
            then_branch = t () => (float[2] u) {{
                [n] b = MatMul (a, w)
                [if] u = If (c) <{BRANCHES % ("b", "b")}>
            }},
            else_branch = e () => (float[2] v) {{ [n] v = Neg (a) }}
        >
    }}""",
    "results of other graphs": f"""g (float[2] x) => (float[2] y, float[2] z) {WEIGHTS} {{
        [n] a = Exp (x)
        [n_1] y, z = If (c) <
            then_branch = t () => (float[2] u, float[2] v) {{
                [n] u = Identity (a) [m] v = Identity (a)
            }},
            else_branch = e () => (float[2] s, float[2] r) {{
                [n] s = Neg (a) [m] r = Identity (a)
            }}
        >
    }}""",
    "branch of a loop": f"""g (float[2] x) => (float[2] y) {WEIGHTS} {{
        [n] a = Exp (x)
        y = Loop (three, c, a) <
            body = b (int64 i, bool on, float[2] u) => (bool stays, float[2] v) {{
                stays = Identity (on)
                [n] k = MatMul (u, w)
                v = If (c) <{BRANCHES % ("k", "k")}>
            }}
        >
    }}""",
    "branch in a branch that stays": f"""g (float[2] x, bool f) => (float[2] y) {WEIGHTS} {{
        [n] a = Exp (x)
        y = If (f) <
            then_branch = t () => (float[2] u) {{
                [n] b = MatMul (a, w)
                u = If (c) <{BRANCHES % ("b", "b")}>
            }},
            else_branch = e () => (float[2] v) {{ [n] v = Neg (a) }}
        >
    }}""",
    "branch of a function": f"""g (float[2] x) => (float[2] y) {{
        [n] a = Exp (x)
        [m] b = local.f (a)
        [n_1] y = local.f (b)
    }}
    <domain: "local", opset_import: ["": 21]> f (x) => (y) {{
        w = Constant <value = float[2, 2] {{1, 2, 3, 4}}> ()
        c = Constant <value = bool {{1}}> ()
        [n] a = MatMul (x, w)
        [m] y = If (c) <{BRANCHES % ("a", "a")}>
    }}""",
}


def graphs_of(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while pending:
        graph = pending.pop()
        yield graph
        attributes = [a for node in graph.node for a in node.attribute]
        pending += [a.g for a in attributes if a.type == onnx.AttributeProto.GRAPH]


def assert_unique(proto: onnx.ModelProto) -> None:
    for graph in graphs_of(proto):
        names = Counter(node.name for node in graph.node if node.name)
        assert max(names.values(), default=1) == 1, f"{names} in {graph.name}"


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return FLAG if len(model.graph.input) == 2 else X


@pytest.mark.parametrize(
    "options",
    [{"level": 0}, {}, {"level": 2}, {"passes": ("inline-functions", "constant-propagation")}],
    ids=["O0", "O1", "O2", "functions inlined"],
)
@pytest.mark.parametrize("name", MODELS)
def test_results_of_all_kinds_are_valid(name, options, tmp_path: Path):
    model = parse(MODELS[name])
    onnx.save(model, tmp_path / "model.onnx")
    onnxfold.optimize_file(tmp_path / "model.onnx", tmp_path / "file.onnx", **options)
    in_place = ir.from_proto(model)
    onnxfold.optimize(in_place, **options)
    results = [
        onnx.load(tmp_path / "file.onnx"),
        onnxfold.optimize(model, **options),
        ir.to_proto(in_place),
    ]
    for result in results:
        assert_unique(result)
        pairs = zip(run(model, feeds_of(model)), run(result, feeds_of(model)), strict=True)
        for want, found in pairs:
            np.testing.assert_allclose(found, want, rtol=1e-6)


def test_nodes_that_do_not_move_keep_their_names():
    made = onnxfold.optimize(parse(MODELS["outer node after the If"]))
    assert [(n.name, n.op_type) for n in made.graph.node] == [("n_1", "MatMul"), ("n", "MatMul")]


def test_names_of_other_graphs_can_be_used():
    """A node may have the name of a node in a removed branch or in a kept branch."""
    model = parse(f"""g (float[2] x, bool f) => (float[2] y) {WEIGHTS} {{
        a = If (c) <{BRANCHES % ("x", "x")}>
        y = If (f) <{BRANCHES % ("a", "a")}>
    }}""")
    made = onnxfold.optimize(model)
    assert [(n.name, n.op_type) for n in made.graph.node] == [("n", "MatMul"), ("", "If")]


def test_invalid_names_are_repaired():
    """onnxruntime rejects the original model. The first node with a name keeps the name."""
    text = """g (float[2] x, bool f) => (float[2] y) {
        [n] a = Exp (x)
        [n_1] b = Exp (a)
        [n] d = Exp (b)
        y = If (f) <
            then_branch = t () => (float[2] u) { [m] k = Exp (d) [m] u = Exp (k) },
            else_branch = e () => (float[2] v) { [n] v = Neg (d) }
        >
    }"""
    model = parse(text)
    valid = parse(text.replace("[n]", "").replace("[m]", ""))
    made = onnxfold.optimize(model)
    assert [node.name for node in made.graph.node] == ["n", "n_1", "n_2", ""]
    assert_unique(made)
    assert_same(valid, made, FLAG)


HOISTED = f"""g (float[2] k, float[2] x) => (float[2] y, float[N, 2] z) {WEIGHTS} {{
    [n] a = Neg (x)
    y, z = Loop (three, c, a) <
        body = b (int64 i, bool on, float[2] u) => (bool stays, float[2] v, float[2] e)
            <float[2] t = {{5, 6}}> {{
            [m] stays = Identity (on)
            [n] d = Mul (k, t)
            [k] e = Exp (d)
            [o] v = Add (u, e)
        }}
    >
    [o] r = Exp (k)
}}"""


@pytest.mark.parametrize("at", ["compile", "runtime"])
def test_parts_of_a_split_model_are_valid(at, tmp_path: Path):
    """Nodes of the body move to the main graph. Some nodes of both graphs have equal names."""
    model = parse(HOISTED)
    bundle = onnxfold.split(
        model, tmp_path / "bundle", runtime_constants=["k"], backend="onnxruntime", fold_at=at
    )
    for part in (bundle.entry, bundle.runtime_fold):
        assert_unique(onnx.load(part))
    feeds = {"k": np.array([0.5, 0.25], np.float32), **X}
    want = onnxfold.Session(model).run(None, feeds)
    found = onnxfold.Session(bundle).run(None, feeds)
    for one, other in zip(want, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["float", "string"])
def test_a_body_initializer_that_is_also_an_output(kind, tmp_path: Path):
    """The initializer moves out of the body with its consumer, and the body returns a copy."""
    tensor = {"float": "{1, 2}", "string": '{"a", "b"}'}[kind]
    use = {
        "float": "k = Mul (r, t) e = Exp (k) v = Add (u, e)",
        "string": "k = Equal (r, t) e = Cast <to = 1> (k) v = Add (u, e)",
    }[kind]
    model = parse(
        f"""g ({kind}[2] r, float[2] x) => (float[2] y, {kind}[N, 2] z) {WEIGHTS} {{
        y, z = Loop (three, c, x) <
            body = b (int64 i, bool on, float[2] u) => (bool stays, float[2] v, {kind}[2] t)
                <{kind}[2] t = {tensor}> {{
                stays = Identity (on)
                {use}
            }}
        >
    }}""",
        opset=19,
    )
    values = {"float": np.array([0.5, 0.25], np.float32), "string": np.array(["a", "c"])}
    feeds = {"r": values[kind].astype(object if kind == "string" else np.float32), **X}
    options = {"runtime_constants": ["r"], "backend": "onnxruntime"}
    found = onnxfold.Session(model, **options).run(None, feeds)
    want = onnxfold.Session(model, backend="onnxruntime").run(None, feeds)
    for one, other in zip(want, found, strict=True):
        np.testing.assert_array_equal(one, other)
