"""Test pairs of functions, kinds of models and options.

Each pair of values of two parameters is in at least one case. In each case, a function must return
the same result for a kind of model as for the path of the model. The function must not change the
model of the caller unless it works in place. The model must not grow by more than `max_growth`.
"""

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_table import ROOT, floats, saved

import onnxfold

MODELS = {
    "control_flow": ROOT / "tests" / "data" / "control_flow.onnx",
    "lora_dynamo": ROOT / "models" / "lora" / "dynamo.onnx",
    "lora_torchscript": ROOT / "models" / "lora" / "torchscript.onnx",
}
LARGER = {
    "lstm_gru": ROOT / "tests" / "data" / "lstm_gru.onnx",
    "swin": ROOT / "models" / "swin.onnx",
    "t5": ROOT / "models" / "t5-decoder.onnx",
}


class Program:
    """A substitute for ``torch.onnx.ONNXProgram`` with the members that onnxfold uses."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model

    def release(self) -> None:
        """Do nothing, because there is no session."""


KINDS: dict[str, Callable[[Path], Any]] = {
    "path": Path,
    "bytes": lambda path: onnx.load(path).SerializeToString(),
    "proto": onnx.load,
    "ir": ir.load,
    "loaded": onnxfold.load,
    "program": lambda path: Program(ir.load(path)),
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "level": [{}, {"level": 0}, {"level": 2}, {"target": "onnxruntime"}],
    "growth": [{}, {"max_growth": 0}, {"max_growth": "1kB"}],
    "memory": [{}, {"memory_limit": "20kB"}],
    "folded": [{}, {"fold_all": True}, {"fold": ["*"]}, {"keep": ["Transpose", "*_1"]}],
    "quantized": [{}, {"fold_quantized": True}],
    "precision": [{}, {"precision": "wide"}],
    "explain": [{}, {"explain": True}],
    "rules": [{}, {"disable": ["identities"]}, {"enable": ["runtime_constants"]}],
    "passes": [{}, {}, {"passes": ["constant-propagation", "simplify", "dead-code"]}],
    "sizes": [{}, {"dims": 2}, {"input_shapes": 2}, {"input_shapes": 2, "keep_dims": True}],
    "value_info": [{}, {"value_info": True}],
    "check": [{}, {"check": 1}],
}
OUTPUTS: list[dict[str, Any]] = [
    {},
    {"external_data": True},
    {"external_data": False},
    {"share_weights": True},
    {"advise": True, "count_withheld": True},
    {"report": "page.html", "dump_ir": "passes"},
]
"""Options that only ``optimize_file`` has."""
UNBOUNDED = {"fold_all", "fold", "value_info", "passes"}
"""Options with which the model may grow beyond ``max_growth``."""


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int) -> Iterator[dict[str, Any]]:
    """Yield choices of one value for each factor.

    Each pair of values of two factors is in at least one choice.
    """
    rng = random.Random(seed)
    places = {name: range(len(values)) for name, values in factors.items()}

    def pairs(row: Mapping[str, int]) -> set[Any]:
        return set(itertools.combinations(sorted(row.items()), 2))

    missing = {
        pair
        for a, b in itertools.combinations(sorted(places), 2)
        for pair in itertools.product(((a, k) for k in places[a]), ((b, k) for k in places[b]))
    }
    while missing:
        first = dict(rng.choice(sorted(missing)))
        rows = [{n: rng.choice(p) for n, p in places.items()} | first for _ in range(50)]
        best = max(rows, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        yield {name: factors[name][k] for name, k in best.items()}


def content(model: Any, folder: Path) -> bytes:
    """Return a model of any kind, serialized with its external data."""
    if isinstance(model, Program):
        model = model.model
    if isinstance(model, ir.Model):
        onnxfold.save(model, folder / "saved.onnx", fsync=False)
        model = folder / "saved.onnx"
    if isinstance(model, Path):
        model = onnx.load(model)
    if isinstance(model, bytes):
        return model
    for tensor in model.graph.initializer:
        tensor.ClearField("data_location")  # onnx.load writes the default where data was external
    return model.SerializeToString(deterministic=True)


def figures(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document that are equal for all kinds of models and all machines."""
    others = {"source", "target", "bytes_before", "bytes_written", "pool", "seconds", "prediction"}
    others |= {"bytes_after", "digest"}  # depend on the existence of data files
    others |= {"cpu_seconds", "peak_rss_bytes", "stages", "hashes", "check", "a", "b"}
    return {name: value for name, value in document.items() if name not in others}


def optimize(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    made, report = onnxfold.optimize(given, return_report=True, **options)
    assert made is given or not isinstance(given, (ir.Model, Program))
    return content(made, folder), figures(report.to_dict())


def optimize_file(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    out = Path(tempfile.mkdtemp(dir=folder))
    pages = {name: out / options[name] for name in ("report", "dump_ir") if name in options}
    report = onnxfold.optimize_file(given, out / "out.onnx", fsync=False, **{**options, **pages})
    return content(out / "out.onnx", folder), figures(report.to_dict())


def simplify(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    made, is_same = onnxfold.simplify(given, options.pop("check", 0), **options)
    return content(made, folder), is_same


def slim(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    return content(onnxfold.slim(given, **options), folder), None


def plan(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    if "passes" not in options or "constant-propagation" in options["passes"]:
        return figures(onnxfold.plan(given, **options).to_dict())
    return None


def explain(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    options.pop("check", None)
    return [each.to_dict() for each in onnxfold.explain(given, **options)]


def why(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    options.pop("check", None)
    return onnxfold.why(given, onnx.load(path).graph.output[0].name, **options).to_dict()


def compare(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    onnxfold.optimize_file(path, folder / "out.onnx", fsync=False, **options)
    loose = {"rtol": 1e-4, "atol": 1e-5}
    compared = onnxfold.compare(given, folder / "out.onnx", dims=options.get("dims"), **loose)
    assert compared.passed or options.keys() & {"input_shapes", "precision"}
    return figures(compared.to_dict())


def split(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    options.pop("check", None)
    name = onnx.load(path).graph.input[-1].name
    bundle = folder / "bundle"
    made = onnxfold.split(given, bundle, runtime_constants=[name], fsync=False, **options)
    parts = [content(part, folder) for part in sorted(bundle.glob("*.onnx"))]
    return parts, figures(made.manifest.to_dict())


def session(given: Any, path: Path, folder: Path, options: dict[str, Any]) -> Any:
    options.pop("check", None)
    feeds = {
        value.name: np.ones([d.dim_value or 2 for d in value.type.tensor_type.shape.dim]).astype(
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
        for value in onnx.load(path).graph.input
    }
    made = onnxfold.Session(given, runtime_constants=[[*feeds][-1]], **options)
    return [np.asarray(result).tobytes() for result in made.run(None, feeds)]


FUNCTIONS = (
    optimize,
    optimize_file,
    simplify,
    slim,
    plan,
    explain,
    why,
    compare,
    split,
    session,
)
IN_PLACE = {optimize: (ir.Model, Program)}


def fitting(options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return options in which the names and sizes of a model replace the placeholders.

    Without a named dim in its first input, ``dims`` and ``keep_dims`` are omitted.
    """
    first = onnx.load(path).graph.input[0]
    dims = first.type.tensor_type.shape.dim
    name = next((dim.dim_param for dim in dims if dim.dim_param), None)
    shape = [
        dim.dim_value or (options.get("input_shapes") if k == 0 else -1)
        for k, dim in enumerate(dims)
    ]
    values = {"dims": {name: 2}, "keep_dims": [name], "input_shapes": {first.name: shape}}
    found = {k: values.get(k, v) for k, v in options.items()}
    return found if name else {k: v for k, v in found.items() if k not in ("dims", "keep_dims")}


def snapshot(given: Any) -> bytes:
    if isinstance(given, Path):
        return given.read_bytes()
    given = given.model if isinstance(given, Program) else given
    given = ir.to_proto(given) if isinstance(given, ir.Model) else given
    return given if isinstance(given, bytes) else given.SerializeToString(deterministic=True)


def run_case(case: dict[str, Any], folder: Path) -> None:
    function = case["function"]
    path = case["model"]
    options = fitting({k: v for name in OPTIONS for k, v in case[name].items()}, path)
    if function is optimize_file:
        options |= case["output"]
    if case["is_external"]:
        options.pop("max_growth", None)  # the file and the model in memory differ in size
        source, path = onnx.load(path), folder / path.name
        onnx.save(source, path, save_as_external_data=True, size_threshold=300)
    want = function(path, path, folder, dict(options))
    given = KINDS[case["kind"]](path)
    before = snapshot(given)
    got = function(given, path, folder, dict(options))
    assert got == want
    is_bounded = "max_growth" in options and not UNBOUNDED & options.keys()
    growth = {0: 0, "1kB": 1000}.get(options.get("max_growth"), 0)
    after = snapshot(given)
    if isinstance(given, IN_PLACE.get(function, ())):
        assert len(after) <= len(before) + growth or not is_bounded
    else:
        assert after == before
    if function in (optimize, optimize_file, simplify, slim):
        size = len(onnx.load(path).SerializeToString())
        assert len(got[0]) <= size + growth or not is_bounded


def cases(models: Mapping[str, Path], seed: int) -> list[dict[str, Any]]:
    factors = {
        "function": FUNCTIONS,
        "kind": [*KINDS],
        "model": [*models.values()],
        "is_external": [False, True],
        "output": OUTPUTS,
        **OPTIONS,
    }
    return list(pairwise(factors, seed))


def named(case: dict[str, Any]) -> str:
    options = [k for name in OPTIONS for k in case[name]]
    return "-".join([case["function"].__name__, case["kind"], case["model"].stem, *options])


@pytest.mark.parametrize("case", cases(MODELS, 0), ids=named)
def test_pairs_of_choices(case, tmp_path):
    run_case(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_pairs_of_choices_for_larger_models(seed, tmp_path):
    for case in cases({**MODELS, **LARGER}, seed):
        run_case(case, tmp_path)


SIDE = 512
WEIGHTS = 6


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """Return the path of a model with constants of 1 MiB, which are computed as a whole."""
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    lines = [f"s{k} = Softmax(w{k}) y{k} = MatMul(x, s{k})" for k in range(WEIGHTS)]
    outputs = ", ".join(f"float[n, {SIDE}] y{k}" for k in range(WEIGHTS))
    text = f"g (float[n, {SIDE}] x) => ({outputs}) {{ {' '.join(lines)} }}"
    return saved(text, path, **{f"w{k}": floats(SIDE, SIDE, seed=k) for k in range(WEIGHTS)})


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_limit_holds_for_every_kind(kind, large, tmp_path):
    limit = 3 << 20
    size = 4 * SIDE * SIDE
    options: dict[str, Any] = {"memory_limit": limit, "max_growth": 0}
    _, in_memory = onnxfold.optimize(KINDS[kind](large), return_report=True, **options)
    to_file = onnxfold.optimize_file(KINDS[kind](large), tmp_path / "out.onnx", **options)
    for report in (in_memory, to_file):
        assert report.nodes_after == {"MatMul": WEIGHTS}
        assert report.pool["peak_bytes"] <= limit + size
        assert report.pool["spilled_bytes"] >= WEIGHTS * size - limit
    assert onnxfold.compare(large, tmp_path / "out.onnx").equal
