"""Test that `reduce` keeps a planted failure, but only few of the nodes of a long model."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_table import parse
from onnx import helper, numpy_helper, parser
from processes import ACCESS_VIOLATION

import onnxfold
from onnxfold.cli import main
from onnxfold.support.errors import UsageError

WRONG = "op.Exp(op.Softplus(x)) >> op.Exp(x)"
NEAR = "op.Exp(op.Softplus(x)) >> op.Add(op.Exp(x), constant(1.001))"
ONLY_LARGE = "op.Min(op.Exp(x), 9) >> op.Exp(x)"
CRASH = """m = Constant <value_int = 2> () s = ReduceMax <keepdims = 0> (x) z = Cast <to = 9> (s)
    "", r = Loop (m, "", z) <body = b (int64 i, bool k, bool a) => (bool k2, bool a2, float o)
        { k2 = Identity (k) a2 = Identity (a) o = Constant <value_float = 1.5> () }>
    t = ReduceSum <keepdims = 0> (r) y = Add (x, t)"""
ENDLESS = """go = Constant <value = bool {1}> ()
    y = Loop ("", go, x) <body = b (int64 i, bool k, float[n,8] a) => (bool k2, float[n,8] a2)
        { k2 = Identity (k) a2 = Neg (a) }>"""
SOFTPLUS = "s = Softplus (x) y = Exp (s)"
ERF = "y = Erf (x)"
SOFTPLUS_OPS = {"Softplus", "Exp"}
LATE = {"timeout": 2.0}
SLOW = pytest.mark.slow
FAILS = ["sh", "-c", 'grep -q Erf "$0" && exit 7; exit 0']
SLEEPS = ["sh", "-c", '! grep -q Erf "$0" || sleep 60', "{}"]


def long_model(path: Path, text: str, count: int) -> Path:
    """Save a chain of `count` nodes, with residual connections if the chain is long.

    The nodes in `text`, which compute y from x, replace one node of the chain. After the chain, an
    Add node adds the result of these nodes to the result of the chain.
    """
    planted = parser.parse_graph(f"g (float[n,8] x) => (float[n,8] y) {{ {text} }}")
    rng = np.random.default_rng(0)
    nodes = []
    weights = []
    last = "in"
    for k in range(count):
        if k == count // 3 * 2:
            names = {"x": last, "y": f"v{k}"}
            for node in planted.node:
                node.input[:] = [names.get(name, name) for name in node.input]
                node.output[:] = [names.get(name, name) for name in node.output]
            nodes += planted.node
        elif k % 5 == 4:
            weight = rng.standard_normal((8, 8)).astype(np.float32) / 4
            weights.append(numpy_helper.from_array(weight, f"w{k}"))
            nodes.append(helper.make_node("MatMul", [last, f"w{k}"], [f"v{k}"]))
        elif k % 5 == 3 and k > 20:
            nodes.append(helper.make_node("Add", [last, f"v{k - 10}"], [f"v{k}"]))
        else:
            op = ("Relu", "Abs", "Tanh", "Sigmoid")[k % 4]
            nodes.append(helper.make_node(op, [last], [f"v{k}"]))
        last = f"v{k}"
    nodes.append(helper.make_node("Add", [last, f"v{count // 3 * 2}"], ["out"]))
    model = parse("g (float[n,8] in) => (float[n,8] out) { }", 17)
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(weights)
    onnx.save(model, path)
    return path


CRASHES = f"the process ends with {ACCESS_VIOLATION}"


def rule_file(folder: Path, text: str) -> str:
    path = folder / "wrong_rules.py"
    path.write_text(
        "from onnxfold.rewrite import computed, constant, op, rule, where\n\n\n@rule\n"
        f'def wrong(x):\n    """Wrong."""\n    return {text}\n'
    )
    return str(path)


@pytest.mark.parametrize(
    ("text", "count", "options", "failure", "ops"),
    [
        (SOFTPLUS, 520, {"rules": WRONG}, "the optimized model is different", SOFTPLUS_OPS),
        (SOFTPLUS, 520, {"rules": NEAR, "rtol": 1e-5}, "the optimized model is", SOFTPLUS_OPS),
        (CRASH, 6, {}, CRASHES, {"Loop"}),
        pytest.param(CRASH, 520, {}, CRASHES, {"Loop"}, marks=SLOW),
        pytest.param(ENDLESS, 520, LATE, "the process takes longer than 2 s", {"Loop"}, marks=SLOW),
        (ERF, 520, {"command": FAILS}, "the command ends with exit code 7", {"Erf"}),
        (ERF, 6, {"command": SLEEPS, "timeout": 0.5}, "the command takes longer than 0.5", {"Erf"}),
    ],
)
def test_planted_failures(tmp_path, text, count, options, failure, ops):
    if "rules" in options:
        options = {**options, "rules": [rule_file(tmp_path, options["rules"])]}
    source = long_model(tmp_path / "in.onnx", text, count)
    small = tmp_path / "small.onnx"
    calls = []
    done = onnxfold.reduce(source, small, progress=lambda *at: calls.append(at), **options)
    model = onnx.load(small)
    assert done.failure.startswith(failure)
    assert done.before["nodes"] >= count and done.after["nodes"] == len(model.graph.node) <= 10
    assert ops <= {node.op_type for node in model.graph.node}
    assert not any(weight.dims for weight in model.graph.initializer)
    assert done.runs < 100 and calls[-1][0] == "reduce"
    assert done.feeds is None
    assert sorted(path.name for path in tmp_path.glob("*.onnx*")) == ["in.onnx", "small.onnx"]
    again = onnxfold.reduce(small, tmp_path / "again.onnx", **options)
    assert again.failure.split(",")[0] == done.failure.split(",")[0]


def test_inputs_that_a_failure_needs_are_written(tmp_path):
    text = "nine = Constant <value = float {9}> () e = Exp (x) y = Min (e, nine)"
    source = long_model(tmp_path / "in.onnx", text, 2)
    small = tmp_path / "small.onnx"
    options = {"rules": [rule_file(tmp_path, ONLY_LARGE)], "level": 2}
    with pytest.raises(UsageError, match="the model shows no failure"):
        onnxfold.reduce(source, small, **options)
    feeds = {"in": np.full((2, 8), 5, np.float32)}
    done = onnxfold.reduce(source, small, feeds=feeds, **options)
    assert done.after["nodes"] <= 3 and done.feeds == f"{small}.npz"
    with pytest.raises(onnxfold.CheckFailedError):
        onnxfold.optimize(str(small), feeds=done.feeds, **options)


def test_branches_and_functions(tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (float[n,8] x, bool c) => (float[n,8] r) {
        r = If (c) <then_branch = t () => (float[n,8] a) { a = local.many (x) },
                    else_branch = e () => (float[n,8] b) { b = Neg (x) }> }
    <domain: "local", opset_import: ["": 17]> many (x) => (y) {
        a = Abs (x) s = Softplus (a) e = Exp (s) b = Tanh (e) y = Neg (b) }"""
    source = tmp_path / "in.onnx"
    small = tmp_path / "small.onnx"
    onnx.save(parser.parse_model(text), source)
    feeds = {"x": np.ones((2, 8), np.float32), "c": np.array(True)}
    onnxfold.reduce(source, small, feeds=feeds, rules=[rule_file(tmp_path, WRONG)])
    model = onnx.load(small)
    assert [node.op_type for node in model.graph.node] == ["Softplus", "Exp"]
    assert not model.functions


def test_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    long_model(tmp_path / "in.onnx", ERF, 12)
    command = ["--", *FAILS]
    assert main(["reduce", "in.onnx", "-o", "small.onnx", *command]) == 0
    text = capsys.readouterr().out
    assert text.startswith("failure: the command ends with exit code 7\n")
    assert text.splitlines()[3].split() == ["nodes", "13", "1"]
    assert main(["reduce", "in.onnx", "-o", "small.onnx", "--json", *command]) == 0
    assert json.loads(capsys.readouterr().out)["after"]["nodes"] == 1


def test_an_error_of_a_condition(tmp_path):
    source = long_model(tmp_path / "in.onnx", SOFTPLUS, 40)
    small = tmp_path / "small.onnx"
    text = "op.Softplus(x) >> op.Relu(x), where(computed(lambda v: {}['no axis 7'])(x))"
    done = onnxfold.reduce(source, small, rules=[rule_file(tmp_path, text)])
    assert "no axis 7" in done.failure and done.after["nodes"] == 1
