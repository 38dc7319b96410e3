"""Test that only `ModelFacts` creates analyses and only a few modules access stored tensors.

Further tests check `stored_tensor`, the values of constants, and the methods of `ModelFacts`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest
from model_table import parse

from onnxfold.analysis.constness import RECORD_KEY, Constness
from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.ir import storage
from onnxfold.ir.symbolic.fact import of_type

PACKAGE = Path(__file__).parents[2] / "onnxfold"
RULES = PACKAGE.parent / "rules"

ANALYSES = {"ConstnessAnalysis", "Determinism", "FactPropagation", "Scopes", "SymbolicAnalysis"}

# The modules outside `ir/storage` that read `const_value`, and the purpose. They do not use
# `const_value` to decide whether a value is a constant.
READERS = {
    "ir/graphs.py": "the declared type of a value, as text",
    "fold/pool/pool.py": "the first buffer of a value that the caller knows to be a constant",
    "runtime/bundles/in_memory.py": "initializers that move to another file",
    "runtime/sessions/cache.py": "initializers of a file that the cache has written",
}
WRITERS = {"ir/editing.py", "runtime/bundles/in_memory.py"}


def parsed_modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in (PACKAGE, RULES):
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def name_of(expression: ast.expr) -> str:
    if isinstance(expression, ast.Name):
        return expression.id
    return expression.attr if isinstance(expression, ast.Attribute) else ""


def test_only_model_facts_creates_analyses() -> None:
    found = {
        (name, name_of(node.func))
        for name, module in parsed_modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and name_of(node.func) in ANALYSES
    }
    assert {name for name, _ in found} == {"analysis/facts.py"}
    assert {called for _, called in found} == ANALYSES - {"FactPropagation"}


def test_only_storage_reads_the_tensor_of_a_value() -> None:
    found = {
        name
        for name, module in parsed_modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        if node.attr == "get_const_tensor"
        or (node.attr == "const_value" and isinstance(node.ctx, ast.Load))
    }
    assert {name for name in found if not name.startswith("ir/storage/")} == set(READERS)


def test_only_storage_and_editing_set_the_tensor_of_a_value() -> None:
    found = {
        name
        for name, module in parsed_modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute)
        if node.attr == "const_value" and not isinstance(node.ctx, ast.Load)
    }
    assert {name for name in found if not name.startswith("ir/storage/")} == WRITERS


STORED = """g (float[2] x, float[2] d) => (float[2] y, float[2] z)
    <float[2] d = {1, 2}, float[2] w = {3, 4}> {
        c = Constant<value_ints = [5, 6]>()
        n = Neg(w)
        y = Add(x, n)
        z = local.F<a = 7>(d)
    }
    <domain: "local", opset_import: ["": 17]> F<a>(v) => (r) {
        k = Constant<value_int: int = @a>()
        r = Identity(v)
    }"""


@pytest.mark.parametrize("lift_constants", [False, True])
def test_stored_tensors(lift_constants) -> None:
    model = storage.opened(parse(STORED, 17), lift_constants=lift_constants)
    graph = model.graph
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
    values |= {v.name: v for node in graph for v in node.outputs}
    (function,) = model.functions.values()
    values |= {v.name: v for node in function for v in node.outputs}
    tensors = {
        name: tensor.numpy().tolist()
        for name, value in values.items()
        if (tensor := storage.stored_tensor(value)) is not None
    }
    assert {name: tensors[name] for name in tensors if name != "c"} == {"w": [3, 4]}
    assert tensors.get("c", [5, 6]) == [5, 6] and ("c" in tensors) == ("c" in values)
    assert storage.stored_or_default(values["d"]).numpy().tolist() == [1, 2]
    assert storage.stored_or_default(values["w"]) is storage.stored_tensor(values["w"])
    assert storage.stored_or_default(values["x"]) is None
    assert {value.name for value, _ in storage.initializers_of(graph)} - {"c"} == {"d", "w"}


def test_the_lattice_has_the_values_of_compile_time_constants() -> None:
    model = ir.from_proto(parse(STORED, 17))
    values = {v.name: v for node in model.graph for v in node.outputs}
    values |= dict(model.graph.initializers)
    constness = ModelFacts(model, runtime_constants=[model.graph.inputs[0]]).constness
    assert constness.of(values["n"]) is Constness.COMPILE_TIME
    assert constness.array(values["n"]).tolist() == [-3, -4]
    assert constness.tensor(values["n"]) is None and constness.tensor(values["w"]) is not None
    assert constness.buffer(values["w"]).array().tolist() == [3, 4]
    assert constness.of(values["y"]) is Constness.RUNTIME and constness.array(values["y"]) is None
    assert constness.of(values["d"]) is Constness.VARIABLE and constness.array(values["d"]) is None


def test_runtime_constants_are_those_given_or_recorded() -> None:
    model = ir.from_proto(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }", 17))
    x = model.graph.inputs[0]
    assert ModelFacts(model).constness.of(x) is Constness.VARIABLE
    assert ModelFacts(model, runtime_constants=[x]).constness.of(x) is Constness.RUNTIME
    model.metadata_props[RECORD_KEY] = '["x"]'
    assert ModelFacts(model).constness.of(x) is Constness.RUNTIME
    assert ModelFacts(model, runtime_constants=()).constness.of(x) is Constness.VARIABLE
    model.metadata_props[RECORD_KEY] = "damaged"
    y = ModelFacts(model, runtime_constants=()).types.of(model.graph.outputs[0])
    assert y.static_shape == (2,)


def test_new_types_do_not_change_those_of_the_model() -> None:
    model = ir.from_proto(parse("g (float[N] x) => (float[N] y) { y = Neg(x) }", 17))
    facts = ModelFacts(model)
    (x,) = model.graph.inputs
    (y,) = model.graph.outputs
    types = facts.new_types()
    types.set(x, of_type(ir.DataType.FLOAT, [3], types.algebra))
    assert types.of(y).static_shape == (3,) and facts.types.of(y).static_shape is None
    assert types.constness is facts.constness and types.scopes is facts.scopes


def test_analyses_do_not_change_the_model() -> None:
    text = """g (bool b, float[2] x) => (float[2] y) {
        t = Neg(x)
        y = If (b) <
            then_branch = a () => (float[2] u) { t = Abs(x) u = Neg(t) },
            else_branch = e () => (float[2] v) { v = Neg(x) }
        >
    }"""
    model = ir.from_proto(parse(text, 17))
    inner = next(iter(model.graph[1].attributes["then_branch"].as_graph())).outputs[0]
    ModelFacts(model).types.run()
    assert inner.name == "t"
    facts_of(model)  # renames the inner t, so that the branch can read the outer t
    assert inner.name != "t"
