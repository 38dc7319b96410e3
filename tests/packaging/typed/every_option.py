"""Call every public function with every option. Type checkers accept the file; it never runs."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

import onnxfold
from onnxfold import FoldCache, InferenceSession, Session
from onnxfold.passes import all_passes, create
from onnxfold.rewrite import (
    Attribute,
    Constant,
    Matched,
    Rule,
    RuleSet,
    Value,
    Values,
    computed,
    inexact_if,
    op,
    rule,
    rule_set,
    where,
)
from onnxfold.tools.batches import Batch
from onnxfold.tools.bench.side_by_side import Benchmark, bench_models
from onnxfold.tools.comparison import Comparison
from onnxfold.tools.reduction import Reduction
from onnxfold.tools.report.summary import Report
from onnxfold.tools.shape_inference import InferenceReport
from onnxfold.tools.tuning import Tuning

path = Path("in.onnx")
proto = onnx.load("in.onnx")


def on_progress(stage: str, done: int, total: int) -> None:
    """Receive the progress of a run."""


def on_save(done: int, total: int) -> None:
    """Receive the progress of a save."""


# models: `optimize` returns the type of its argument, or `ir.Model` for a path
model: ir.Model = onnxfold.load(path)
of_path: ir.Model = onnxfold.optimize("in.onnx")
of_model: ir.Model = onnxfold.optimize(model)
of_proto: onnx.ModelProto = onnxfold.optimize(proto)
of_bytes: bytes = onnxfold.optimize(proto.SerializeToString())
with_report: tuple[onnx.ModelProto, Report] = onnxfold.optimize(proto, return_report=True)
of_path_with_report: tuple[ir.Model, Report] = onnxfold.optimize(path, return_report=True)
onnxfold.save(model, "out.onnx", external_data="weights.bin", share_weights=False, fsync=False)
onnxfold.save(model, "out.onnx", threads=4, progress=on_save)


# rules and passes
@rule(inexact=True, opset=(7, 20), seen_in="package/model")
def plain(x: Value, c: Constant) -> object:
    """Exp is never negative."""
    return op.Relu(op.Exp(x)) >> op.Exp(x), where(x.rank == 2, c.shape == x.shape)


@rule(each={"one": (1,), "two": (2,)})
def several(x: Value, xs: Values, a: Attribute, number: int) -> object:
    """Conditions are recorded."""
    pair = op.Concat(x, *xs, axis=a) >> op.Concat(x, *xs, axis=a + number)
    return pair, where((x.rank + a > number) & ~x.is_float, is_small(x)), inexact_if(x.is_float)


@computed
def is_small(x: Matched) -> bool:
    return x.size < 10


mine: Rule = plain
rules: RuleSet = rule_set("own", {"mine": mine, "several": several}, doc="My own rules.")
create("dead-code")(model)
names: list[str] = list(all_passes())

# options by subject
onnxfold.optimize(path, level=2, target="onnxruntime", precision="wide", memory_limit=1 << 29)
onnxfold.optimize(path, fold_all=False, fold_quantized=True, fold=("Expand",), max_growth="64kB")
onnxfold.optimize(path, keep=["*/Softmax*", "Transpose"], enable=["compiler_forms"], passes=None)
onnxfold.optimize(path, disable=["attention"], rules=["my_rules.py", path, rules])
onnxfold.optimize(path, dims={"batch": 1}, input_shapes={"x": [1, 3, -1, -1]}, keep_dims=["seq"])
onnxfold.optimize(path, check=3, feeds={"x": np.zeros((1, 3, 4, 4), np.float32)})
onnxfold.optimize(path, check_dims={"batch": 2}, rtol=1e-3, atol=1e-5, ulp=2)
onnxfold.optimize(path, custom_ops=["ops.so", path], value_info=True, keep_metadata=True)
onnxfold.optimize(path, ops=["ops.py", path], target=onnxfold.Target("onnxruntime"))
onnxfold.optimize_file(path, "out.onnx", external_data=True, share_weights=False, fsync=False)
onnxfold.optimize_file(path, "out.onnx", explain=True, advise=True, progress=on_progress)
report: Report = onnxfold.optimize_file("in.onnx", "out.onnx", count_withheld=True)
onnxfold.optimize_file("in.onnx", "out.onnx", report="page.html", dump_ir="ir")
check: Comparison | None = report.check
in_default_session: Comparison | None = report.check.default_session if report.check else None
nodes: dict[str, int] = report.nodes_after
seconds: float = report.seconds
document: dict[str, object] = report.to_dict()
planned = onnxfold.plan(path, share_weights=True, level=0, check=1)
predicted: dict[str, int] = planned.prediction.memory
reasons: list[str | None] = [decision.reason for decision in onnxfold.explain(proto, keep=["y"])]
inputs: list[str] = onnxfold.why("in.onnx", "y", level=2).inputs
fired: list[bool] = [m.fired for m in onnxfold.explain(path, node="y", rule="identity").rules]
batch: Batch = onnxfold.batch(["models", path], "out", memory=1 << 30, timeout=60.0, level=1)
onnxfold.batch("models", "out", workers=2, executor=ThreadPoolExecutor(), scheduler=None, check=1)
onnxfold.batch(path, "out", only_plan=False, journal="journal.jsonl", progress=on_progress)
statuses: list[str] = [outcome.status for outcome in batch.outcomes]

# comparisons
result: Comparison = onnxfold.compare(path, proto, seeds=3, dims={"batch": 2}, bisect=True)
onnxfold.compare(path, proto, feeds="feeds.npz", rtol=1e-3, atol=1e-5, ulp=1, exact=True)
onnxfold.compare(path, path, providers=["CPUExecutionProvider"], custom_ops=["o"], fallback=False)
is_equal: bool = result.equal and result.passed
result.assert_equal()
measured: Benchmark = bench_models(["a.onnx", "b.onnx"], feeds=None, dims={"batch": 1}, seed=1)
bench_models([path], rtol=1e-3, atol=0.0, ulp=0, threads=[1, 0], rounds=5, custom_ops=[])
bench_models([path], providers=["CPUExecutionProvider"], backend="iree", specialize=True)
bench_models([path], splitting={"runtime_constants": ["states"]})
tuned: Tuning = onnxfold.tune(
    path, "out.onnx", dims={"batch": 1}, threads=1, seconds=5.0, check=2, progress=on_progress
)
typed: onnx.ModelProto = onnxfold.infer_shapes(proto)
typed_path: ir.Model = onnxfold.infer_shapes(path)
typed_bytes: tuple[bytes, InferenceReport] = onnxfold.infer_shapes(b"", return_report=True)
types: InferenceReport = onnxfold.infer_shapes_file(
    path, "out.onnx", share_weights=True, fsync=False, progress=on_progress
)
values_with_rank: int = types.after.rank
reduced: Reduction = onnxfold.reduce(
    path,
    "out.onnx",
    command=["python", "fails.py", "{}"],
    timeout=5.0,
    progress=on_progress,
    level=2,
)

# runtime constants
onnxfold.split(path, "bundle", runtime_constants=["states"], overridable=True, fold_at="runtime")
onnxfold.split(path, "bundle", max_cache=1 << 20, nominal={"batch": 1}, level=2, fsync=False)
onnxfold.split(path, "bundle", backend="onnx-mlir", strict_backend=True, backend_options=["-O3"])
onnxfold.split(path, "bundle", runtime_constants=["x"], target_cpu="x86-64-v3")
onnxfold.split(path, "bundle", runtime_constants=["x"], target_cpu=["generic", "native"])
onnxfold.split(path, "bundle", compile_seconds=60.0, dump_ir="stages", progress=on_progress)
session = Session("bundle", None, ["CPUExecutionProvider"], backend="auto", strict_backend=False)
cache = FoldCache("folder", max_bytes=1 << 30)
cached = Session("bundle", max_cache_bytes=None, cache=cache, specialize=True)
fed = {"x": np.zeros(2, np.float32)}
handle = session.fold({"states": np.zeros(2, np.float32)})
outputs: Sequence[object] = session.run(None, fed, handle=handle)
again: Sequence[object] = handle.run(["y"], fed)
shapes: list[list[int | str | None] | None] = [arg.shape for arg in session.get_inputs()]
hits: int = session.cache_statistics().hits
in_memory = Session(proto, runtime_constants=["states"], max_cache=1 << 20, level=2)

cpu: tuple[str, dict[str, object]] = ("CPUExecutionProvider", {})
optimized_once = InferenceSession(path, None, [cpu, "Azure"], None, enable_fallback=False)
InferenceSession("in.onnx", level=2, target="onnxruntime", read_config_from_model=0)
InferenceSession("in.onnx", disabled_optimizers=["ConstantFolding"])
first: Sequence[object] = optimized_once.run(None, fed)

# keywords of other tools
simplified, is_same = onnxfold.simplify(proto, 3, perform_optimization=True, custom_lib="ops.so")
simplified_proto: onnx.ModelProto = simplified
onnxfold.simplify(proto, overwrite_input_shapes={"x": [1, 3]}, test_input_shapes={"x": [2, 3]})
onnxfold.simplify(proto, input_data=None, check_rtol=1e-3, check_atol=None, inline_functions=True)
onnxfold.simplify(proto, output_path="out.onnx", level=2, keep=["y"])
slimmed: onnx.ModelProto | None = onnxfold.slim("in.onnx", "out.onnx", input_shapes=["x:1,3"])
onnxfold.slim("in.onnx", model_check=True, model_check_inputs=["x:x.npy"], check=2)
onnxfold.slim("in.onnx", "out.onnx", save_as_external_data=True)

try:
    onnxfold.load("missing.onnx")
except onnxfold.MissingFileError as missing:
    missing_name: str = missing.filename
except onnxfold.CheckFailedError as failed:
    failed_file: str | None = failed.file
except (onnxfold.ExternalDataError, onnxfold.ModelError, onnxfold.UsageError) as error:
    why: str = error.reason
except onnxfold.OnnxFoldError as other:
    node: str | None = other.node
