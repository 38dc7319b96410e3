"""Test that every function accepts a path, bytes, an onnx.ModelProto and an onnx_ir.Model."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_table import SWIN, external, floats, parse, saved, with_weights

import onnxfold
from onnxfold.api.options import CheckedOptionArguments, OptionArguments, SplitArguments
from onnxfold.tools.bench.side_by_side import bench_models

SMALL = """g (float[n, 2] x, float[2, 2] r) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
    t = Transpose(w) e = Exp(r) a = MatMul(x, t) y = MatMul(a, e) }"""
UNDEFINED = parse("g (float[2] x) => (float[2] y) { y = Add(x, sparse) }")
WITHOUT_DATA = parse("g (float[2] x) => (float[2] y) { t = Neg(w) y = Add(x, t) }")
WITHOUT_DATA.graph.initializer.append(external("w", [2], location="missing.bin"))
KINDS: dict[str, Callable[[Path], Any]] = {
    "path": Path,
    "name": str,
    "bytes": Path.read_bytes,
    "proto": onnx.load,
    "ir": ir.load,
    "loaded": onnxfold.load,
}


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def make(kind, tmp_path) -> Callable[[], Any]:
    path = saved(SMALL, tmp_path / "in.onnx")
    return lambda: KINDS[kind](path)


def nodes_of(model: Any) -> int:
    if isinstance(model, bytes):
        model = onnx.load_from_string(model)
    return len(model.graph.node) if isinstance(model, onnx.ModelProto) else len(model.graph)


def test_optimize_returns_the_kind_of_its_input(kind, make):
    given = make()
    model, report = onnxfold.optimize(given, check=1, return_report=True)
    assert isinstance(model, ir.Model if kind in ("path", "name") else type(given))
    assert nodes_of(model) == sum(report.nodes_after.values()) == 3
    assert report.check is not None and report.check.equal
    assert report.bytes_after < report.bytes_before and report.folded == 1


def test_other_functions_accept_every_kind(make, tmp_path):
    report = onnxfold.optimize_file(make(), tmp_path / "out.onnx", check=1)
    assert sum(report.nodes_after.values()) == 3
    assert onnxfold.compare(make(), tmp_path / "out.onnx").equal
    assert onnxfold.plan(make()).nodes == 4
    assert len(onnxfold.explain(make())) == 1
    assert not onnxfold.why(make(), "y").decision
    bundle = onnxfold.split(make(), tmp_path / "bundle", runtime_constants=["r"])
    assert bundle.manifest.nodes["entry"] == 2
    assert onnxfold.Session(make(), runtime_constants=["r"]).get_outputs()


@pytest.mark.parametrize(
    "function",
    [
        onnxfold.optimize,
        onnxfold.plan,
        onnxfold.explain,
        onnxfold.simplify,
        onnxfold.slim,
        onnxfold.Session,
        lambda x: onnxfold.compare(x, x),
        lambda x: onnxfold.why(x, "y"),
        lambda x: onnxfold.split(x, "b"),
        lambda x: onnxfold.optimize_file(x, "o.onnx"),
    ],
)
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        [],
        b"",
        b"no model",
        object(),
        UNDEFINED,
        ir.from_proto(UNDEFINED),
        WITHOUT_DATA,
        WITHOUT_DATA.SerializeToString(),
        ir.from_proto(WITHOUT_DATA),
    ],
)
def test_invalid_models_raise_an_error(function, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(onnxfold.OnnxFoldError):
        function(wrong)
    assert not list(tmp_path.iterdir())


def test_a_loaded_model_keeps_its_layout(tmp_path):
    """The output has external data like the source, even if all external tensors were folded."""
    text = "g (float[n, 64] x) => (float[n, 64] y) { t = Neg(w) y = MatMul(x, t) }"
    model = with_weights(parse(text), w=floats(64, 64))
    path = tmp_path / "in.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights")
    for k, given in enumerate((path, onnxfold.load(path))):
        onnxfold.optimize_file(given, tmp_path / f"{k}.onnx")
        assert (tmp_path / f"{k}.onnx.data").exists()


def test_a_missing_file_is_also_a_file_not_found_error():
    with pytest.raises(FileNotFoundError) as caught:
        onnxfold.optimize("missing.onnx")
    assert isinstance(caught.value, onnxfold.ModelError)
    assert caught.value.filename == "missing.onnx"


def test_sizes_are_numbers_or_texts(tmp_path):
    for size in ("1MB", "1000 kB", 1_000_000):
        report = onnxfold.optimize_file(SWIN, tmp_path / "out.onnx", memory_limit=size)
        assert sum(report.nodes_after.values()) == 194
    with pytest.raises(onnxfold.UsageError, match="'many' is not a size"):
        onnxfold.optimize(SWIN, max_growth="many")


def test_options_without_effect_cause_warnings(tmp_path, caplog):
    options: dict[str, Any] = {"keep": ["logit"], "fold": ["zzz*"]}
    report = onnxfold.optimize_file(SWIN, tmp_path / "out.onnx", **options)
    assert report.warnings == [
        "keep 'logit' matches no op type and no value; did you mean 'logits'?",
        "fold 'zzz*' matches no op type and no value",
    ]
    onnxfold.optimize(SWIN, **options)
    assert [record.message for record in caplog.records] == report.warnings


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"levl": 2}, "unknown option 'levl'; did you mean 'level'?"),
        ({"level": 3}, "level must be 0 or 1 or 2, got 3"),
        ({"level": True}, "level must be 0 or 1 or 2, got True"),
        ({"target": "tensorrt"}, "there is no target 'tensorrt'; there are onnxruntime"),
        ({"precision": "double"}, "precision must be exact or wide, got 'double'"),
        ({"dims": {"batch": "1"}}, "dims['batch'] must be int, got '1'"),
        ({"dims": {3: 1}}, "a name in dims must be str, got 3"),
        ({"dims": {"batch": -1}}, "dims['batch'] must be a finite number of at least 0, got -1"),
        ({"input_shapes": {"x": ["1"]}}, "input_shapes['x'][0] must be int, got '1'"),
        ({"input_shapes": {"x": [-2]}}, "['x'][0] must be a finite number of at least -1, got -2"),
        ({"input_shapes": ["x=1"]}, "'x=1' is not of the form x:1,3,224,224"),
        ({"keep": [3]}, "keep[0] must be str, got 3"),
        ({"keep": "Transpose"}, "keep must be Sequence[str], got 'Transpose'"),
        ({"rules": [3]}, "rules[0] must be str or PathLike[str] or RuleSet, got 3"),
        ({"check": True}, "check must be int, got True"),
        ({"rtol": float("nan")}, "rtol must be a finite number of at least 0, got nan"),
        ({"max_growth": 1.5}, "max_growth must be int or str or None, got 1.5"),
        ({"feeds": [np.zeros(3)]}, "feeds must be Mapping[str, Any] or str or PathLike[str] or"),
    ],
)
def test_invalid_options_are_reported(options, reason):
    with pytest.raises(onnxfold.UsageError) as caught:
        onnxfold.optimize(SWIN, **options)
    assert reason in str(caught.value)


FUNCTIONS: dict[Callable[..., Any], tuple[Any, ...]] = {
    onnxfold.optimize: (SWIN,),
    onnxfold.optimize_file: (SWIN, "out.onnx"),
    onnxfold.plan: (SWIN,),
    onnxfold.explain: (SWIN,),
    onnxfold.why: (SWIN, "logits"),
    onnxfold.compare: (SWIN, SWIN),
    onnxfold.split: (SWIN, "bundle"),
    onnxfold.Session: (SWIN,),
    onnxfold.batch: (SWIN, "folder"),
    onnxfold.load: (SWIN,),
    onnxfold.save: (onnxfold.load(SWIN), "out.onnx"),
    onnxfold.simplify: (SWIN,),
    onnxfold.slim: (SWIN,),
    onnxfold.InferenceSession: (SWIN,),
    onnxfold.FoldCache: (),
    bench_models: ([SWIN],),
}
OPTIONS = {
    **dict.fromkeys((onnxfold.explain, onnxfold.why, onnxfold.simplify), OptionArguments),
    **dict.fromkeys((onnxfold.optimize, onnxfold.optimize_file), CheckedOptionArguments),
    **dict.fromkeys((onnxfold.plan, onnxfold.batch, onnxfold.slim), CheckedOptionArguments),
    **dict.fromkeys((onnxfold.split, onnxfold.Session), SplitArguments),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_invalid_types_are_reported(function, tmp_path, monkeypatch):
    """No argument of a public function accepts a plain object."""
    monkeypatch.chdir(tmp_path)
    given = FUNCTIONS[function]
    parameters = inspect.signature(function).parameters
    for k, parameter in enumerate(parameters):
        # InferenceSession passes the model to onnxruntime, which raises its own error
        if k < len(given) and function is not onnxfold.InferenceSession:
            with pytest.raises(onnxfold.UsageError, match=f"{parameter} must be .*, got object"):
                function(*given[:k], object(), *given[k + 1 :])
    named = [p.name for p in parameters.values() if p.kind is not p.VAR_KEYWORD][len(given) :]
    for name in (*named, *getattr(OPTIONS.get(function), "__annotations__", ())):
        with pytest.raises(onnxfold.UsageError, match=f"{name} must be .*, got object"):
            function(*given, **{name: object()})
    assert not list(tmp_path.iterdir())


def test_invalid_items_of_arguments_are_reported(tmp_path):
    with pytest.raises(onnxfold.UsageError, match=r"providers\[0\] must be str or tuple"):
        onnxfold.compare(SWIN, SWIN, providers=[3])
    with pytest.raises(onnxfold.UsageError, match="no input is called 'x'"):
        onnxfold.split(SWIN, tmp_path / "bundle", runtime_constants={"x": 1})


def test_help_lists_all_options():
    for function, options in OPTIONS.items():
        text = inspect.getdoc(function) or ""
        listed = [name for name in options.__annotations__ if f"\n    {name}: " in text]
        assert listed == list(options.__annotations__) or function is onnxfold.Session


def test_a_batch_without_models_is_rejected(tmp_path):
    with pytest.raises(onnxfold.UsageError, match="sources is empty"):
        onnxfold.batch([], tmp_path / "out")


def test_the_module_lists_only_its_public_names():
    assert set(dir(onnxfold)) == {*onnxfold.__all__, "__version__"}
    for name in onnxfold.__all__:
        assert inspect.getdoc(getattr(onnxfold, name))


def test_results_print_as_their_tables(tmp_path):
    report = onnxfold.optimize_file(SWIN, tmp_path / "out.onnx")
    batch = onnxfold.batch([SWIN], tmp_path / "batch", workers=1)
    output = onnx.load(SWIN).graph.output[0].name
    shown = {
        "(396 folded) in": report,
        "368 of them are constant": onnxfold.plan(SWIN),
        "equal bit for bit on 1 run": onnxfold.compare(SWIN, tmp_path / "out.onnx"),
        "depends on the inputs": onnxfold.why(SWIN, output),
        "1 model: 1 done": batch,
    }
    for text, result in shown.items():
        assert text in repr(result) and len(repr(result).splitlines()) < 40
        assert text in result._repr_html_()
    page = report._repr_html_()
    assert page.startswith("<table><thead>") and page.count("<table>") == 1
    assert '<td style="text-align: left">Transpose</td>' in page and "─" not in page


def test_decisions_are_a_list_that_prints_as_a_table():
    decisions = onnxfold.explain(SWIN)
    assert isinstance(decisions, list) and decisions[0].reason
    assert repr(decisions).splitlines()[0].split()[:3] == ["value", "op", "decision"]
    assert "<td" in decisions._repr_html_()
    text = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
    assert repr(onnxfold.explain(parse(text, 17))) == "no node has only constant inputs"


def test_sessions_bundles_and_handles_print_a_few_lines(tmp_path):
    text = "g (float[2, 2] x, float[2, 2] r) => (float[2, 2] y) { s = MatMul(r, r) y = Add(x, s) }"
    path = saved(text, tmp_path / "model.onnx")
    bundle = onnxfold.split(path, tmp_path / "bundle", runtime_constants=["r"], fsync=False)
    assert repr(bundle).splitlines() == [
        f"{tmp_path / 'bundle'}: of 2 nodes, 1 runs every time (entry), "
        "1 once per setting (runtime_fold)",
        "runtime constants: r",
        "cached: 1 tensor, 16 bytes for each setting at nominal sizes",
    ]
    cache = onnxfold.FoldCache()
    session = onnxfold.Session(path, runtime_constants=["r"], cache=cache)
    assert "in memory: of 2 nodes" in repr(session) and "folded 0 times" in repr(session)
    handle = session.fold({"r": np.ones((2, 2), np.float32)})
    assert repr(handle) == "handle of 1 tensor, 16 bytes folded\ns"
    assert "folded 1 time in" in repr(session) and len(repr(session).splitlines()) == 5
    assert "the cache contains 16 bytes" in repr(session)


@pytest.mark.parametrize("name", ["optimize", "optimize_file", "plan", "batch", "split", "slim"])
def test_signatures_have_every_option(name):
    function = getattr(onnxfold, name)
    parameters = inspect.signature(function).parameters
    declared = CheckedOptionArguments if name not in ("split",) else SplitArguments
    assert declared.__annotations__.keys() <= parameters.keys()
    assert parameters["fold_quantized"].default is False
    assert "**" not in str(inspect.signature(function))


def test_nodes_in_any_order(tmp_path):
    """`optimize` sorts the nodes of an onnx-ir model in place. Other functions do not change it."""
    model = ir.load(saved(SMALL, tmp_path / "in.onnx"))
    model.graph.extend(backwards := [*model.graph][::-1])
    report = onnxfold.optimize_file(model, tmp_path / "out.onnx", check=1)
    assert sum(report.nodes_after.values()) == 3
    assert len(onnxfold.explain(model)) == 1
    assert onnxfold.compare(model, tmp_path / "out.onnx").equal
    assert onnxfold.split(model, tmp_path / "bundle", runtime_constants=["r"])
    assert len(onnxfold.simplify(model, check_n=1)[0].graph.node) == 3
    assert [*model.graph] == backwards
    assert len(onnxfold.optimize(model, check=1).graph) == 3
    model.graph[0].replace_input_with(0, model.graph[-1].outputs[0])
    branch = "() => (float[2] z) { z = Abs(x) }"
    node = f"y = If(c) <then_branch = a {branch}, else_branch = b {branch}>"
    through = ir.from_proto(parse(f"g (float[2] x, bool c) => (float[2] y) {{ {node} }}"))
    taken = through.graph[0].attributes["then_branch"].as_graph()
    taken[0].replace_input_with(0, through.graph.outputs[0])
    for function in (onnxfold.optimize, onnxfold.plan, lambda x: onnxfold.compare(x, x)):
        for cyclic in (model, through):
            with pytest.raises(onnxfold.ModelError, match="the nodes cannot be sorted"):
                function(cyclic)
    other = onnxfold.load(tmp_path / "in.onnx")
    another = onnxfold.load(tmp_path / "in.onnx")
    other.graph[0].replace_input_with(0, through.graph.inputs[0])
    another.graph.initializers["w"].const_value = None
    model.graph.remove(model.graph[-1])
    for incomplete in (model, other, another):
        with pytest.raises(onnxfold.ModelError, match="is not defined anywhere"):
            onnxfold.optimize(incomplete)
    # onnx-ir creates such a value if an output of a subgraph is a value of the outer graph
    taken.outputs[0] = ir.Value(name="x")
    with pytest.raises(onnxfold.ModelError, match="'x' of graph 'a' is not computed in it"):
        onnxfold.optimize(through)


@pytest.mark.parametrize("name", [None, "", "w"])
def test_values_with_missing_or_duplicate_names(tmp_path, name):
    model = ir.load(path := saved(SMALL, tmp_path / "in.onnx"))
    for node in model.graph[:-1]:
        node.outputs[0].name = name
    onnxfold.optimize_file(model, tmp_path / "out.onnx", check=1)
    onnxfold.save(onnxfold.optimize(model), path)
    assert path.read_bytes() == (tmp_path / "out.onnx").read_bytes()
