import json

import pytest
from call_count import calls_of
from model_table import parse

from onnxfold.analysis.constness import (
    RECORD_KEY,
    Constness,
    record,
    select_runtime_constants,
)
from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage
from onnxfold.support.errors import ModelError, UsageError


def analyse(text, *names, **options):
    """Return the name of the constness of each node output, by value name.

    The key of a value in a function is ``function.value``. ``names`` and ``options`` select the
    runtime constants.
    """
    model = model_of(text)
    inputs = select_runtime_constants(model, names, **options)
    found = ModelFacts(model, runtime_constants=inputs).constness
    nodes = [("", node) for node in model.graph.all_nodes()]
    nodes += [(f"{f.name}.", node) for f in model.functions.values() for node in f]
    return {f"{of}{v.name}": found.of(v).name for of, node in nodes for v in node.outputs}


def test_an_op_is_as_constant_as_its_least_constant_input():
    found = analyse(
        """g (float[2] x, float[2] r) => (float[2] y) <float[2] w = {1, 2}> {
            c = Neg(w)
            rc = Add(r, c)
            rr = Mul(rc, rc)
            y = Add(rr, x)
        }""",
        "r",
    )
    assert found == {"c": "COMPILE_TIME", "rc": "RUNTIME", "rr": "RUNTIME", "y": "VARIABLE"}


def test_random_and_custom_ops_are_variable():
    found = analyse(
        """g (float[2] r) => (float[2] a, float[2] b, float[2] c) {
            a = RandomNormalLike(r)
            b = local.Unknown(r)
            c = Exp(r)
        }""",
        "r",
    )
    assert found == {"a": "VARIABLE", "b": "VARIABLE", "c": "RUNTIME"}


def test_captured_values_limit_the_constness_of_a_node():
    text = """g (float[2] x, float[2] r, bool c) => (float[2] y, float[2] z) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Neg(r) },
                    else_branch = e () => (float[2] b) { b = Exp(r) }>
        z = If (c) <then_branch = t2 () => (float[2] a2) { a2 = Neg(r) },
                    else_branch = e2 () => (float[2] b2) { b2 = Exp(x) }>
    }"""
    found = analyse(text, "r", "c")
    assert (found["y"], found["z"]) == ("RUNTIME", "VARIABLE")
    assert (found["a2"], found["b2"]) == ("RUNTIME", "VARIABLE")
    assert analyse(text, "r")["y"] == "VARIABLE"


def test_values_that_depend_on_loop_state_are_variable():
    found = analyse(
        """g (float[2] r, int64 n) => (float[2] y) {
            y = Loop (n, , r) <body = b (int64 i, bool go, float[2] s) => (bool go2, float[2] t) {
                go2 = Identity(go)
                q = Exp(r)
                t = Add(s, q)
            }>
        }""",
        "r",
        "n",
    )
    assert found["y"] == "RUNTIME"
    assert (found["q"], found["t"]) == ("RUNTIME", "VARIABLE")


def test_a_call_is_as_constant_as_its_least_constant_argument():
    found = analyse(
        """g (float[2] x, float[2] r) => (float[2] y, float[2] z) <float[2] w = {1, 2}> {
            y, z = local.f(x, r)
            u, v = local.f(r, r)
            s, t = local.f(w, w)
        }
        <domain: "local", opset_import: ["" : 21]>
        f (a, b) => (p, q) { p = Neg(a) q = Exp(b) }""",
        "r",
    )
    assert (found["y"], found["z"]) == ("VARIABLE", "VARIABLE")
    assert (found["u"], found["v"]) == ("RUNTIME", "RUNTIME")
    assert (found["s"], found["t"]) == ("COMPILE_TIME", "COMPILE_TIME")
    assert (found["f.p"], found["f.q"]) == ("VARIABLE", "VARIABLE")


def model_of(text):
    return storage.from_proto(parse(text))


SMALL = "g (float[2] x, float[2] lora_a, float[2] lora_b) => (float[2] y) { y = Add(x, lora_a) }"


def names(model, *patterns, **options):
    return [v.name for v in select_runtime_constants(model, patterns, **options)]


def test_sources_of_runtime_constants():
    model = model_of(SMALL)
    assert names(model, "lora_*") == ["lora_a", "lora_b"]
    assert names(model) == []
    record(model, ["lora_b"])
    assert json.loads(model.metadata_props[RECORD_KEY]) == ["lora_b"]
    assert names(model) == ["lora_b"]
    assert names(model, "x") == ["x", "lora_b"]
    model.graph.inputs[1].name = "lora[0]"  # an exact name takes precedence over a pattern
    assert names(model, "lora[0]") == ["lora[0]", "lora_b"]
    overridable = "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Add(x, w) }"
    assert names(model_of(overridable)) == []
    assert names(model_of(overridable), overridable=True) == ["w"]


def test_wrong_names_raise_an_error():
    model = model_of("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    with pytest.raises(UsageError, match="no input is called 'nothing'; there are x"):
        names(model, "nothing")
    with pytest.raises(UsageError, match="compile-time constant"):
        names(model, "w")
    model.metadata_props[RECORD_KEY] = "{"
    with pytest.raises(ModelError, match="is not JSON"):
        names(model)
    model.metadata_props[RECORD_KEY] = "3"
    with pytest.raises(ModelError, match="not a list of names"):
        names(model)


def test_order_of_the_lattice():
    assert Constness.VARIABLE < Constness.RUNTIME < Constness.COMPILE_TIME


def test_subgraphs_are_analysed_once_for_all_outputs():
    def steps(count):
        made = {side: [f"{side}{k}" for k in range(200)] for side in "te"}
        branches = [
            f"{name} = {side} () => ({', '.join(f'float[2] {v}' for v in made[side][:count])})"
            f" {{ {' '.join(f'{v} = Neg (r)' for v in made[side])} }}"
            for name, side in (("then_branch", "t"), ("else_branch", "e"))
        ]
        results = [f"y{k}" for k in range(count)]
        outputs = ", ".join(f"float[2] {name}" for name in results)
        body = f"{', '.join(results)} = If (c) <{', '.join(branches)}>"
        model = model_of(f"g (float[2] r, bool c) => ({outputs}) {{ {body} }}")
        found = ModelFacts(model, runtime_constants=model.graph.inputs).constness
        return calls_of(lambda: [found.of(value) for value in model.graph.outputs])

    assert steps(100) < 1.5 * steps(1)
