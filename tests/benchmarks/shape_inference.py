"""``python -m tests.benchmarks shapes``: compare types that tools infer for values of many models.

The recorded types of intermediate values are removed from each model first. Each tool then infers
the types in a separate process, with limits of time and memory. A tool that is not in the current
environment may be in another one (``--environment DIR``); otherwise it is skipped. The types are
compared with runs on onnxruntime (``shape_check.py``). ``--output DIR`` receives ``shapes.txt`` and
``shapes.json``.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from rich.table import Table

from tests.benchmarks.peers.judge import Limits
from tests.benchmarks.peers.peer_tables import new_table, rendered
from tests.benchmarks.peers.tools import measure

ROOT = Path(__file__).parents[2]

OWN = "onnxfold"
_TOOLS = {
    OWN: (
        "onnxfold",
        "from onnxfold.tools.shape_inference import infer_shapes",
        "result = infer_shapes(model)",
    ),
    "onnx": (
        "onnx",
        "import onnx.shape_inference",
        "result = onnx.shape_inference.infer_shapes(model, data_prop=True)",
    ),
    "onnxruntime": (
        "onnxruntime",
        "from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference",
        "result = SymbolicShapeInference.infer_shapes(model, auto_merge=True)",
    ),
    "onnx-shape-inference": (
        "onnx-shape-inference",
        "import onnx_ir as ir\nfrom onnx_shape_inference import infer_symbolic_shapes",
        "result = ir.to_proto(infer_symbolic_shapes(ir.from_proto(model)))",
    ),
}
"""The package of each tool, its import, and the call that infers the types."""

_WORKER = """
import importlib.metadata, json, os, sys, time
import onnx
{imports}
if len(sys.argv) == 1:
    print(importlib.metadata.version("{package}"))
    sys.exit()
model = onnx.load(sys.argv[1])
os.chdir(os.path.dirname(sys.argv[2]))  # onnxruntime writes temporary files
begin = time.process_time()
{call}
seconds = time.process_time() - begin
onnx.save(result, sys.argv[2])
with open(sys.argv[2] + ".json", "w") as file:
    json.dump(seconds, file)
"""

Graph = onnx.GraphProto | onnx.FunctionProto
Key = tuple[str, ...]
"""Path of a value: the first output and the attribute of each enclosing node, then the value's
name."""

_NAMES = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = {"floor", "ceiling", "ceil", "Max", "Min", "max", "min", "Mod"}


@dataclass
class Inferred:
    """The types that a tool has inferred for a model's values.

    Attributes:
        error: Error of the tool; "" if it succeeded.
        seconds: CPU time of the call, without imports and reading. If the tool fails, CPU time of
            its process.
        dtypes: Values with a dtype.
        ranks: Values with a rank.
        sizes: Values whose sizes are all known. Each size is a number, or an expression of the
            dimension names of the model's inputs and outputs.
        others: Values that are not tensors.
        wrong: Names of values of the main graph whose type contradicts a run.
    """

    error: str = ""
    seconds: float = 0.0
    dtypes: set[Key] = field(default_factory=set)
    ranks: set[Key] = field(default_factory=set)
    sizes: set[Key] = field(default_factory=set)
    others: set[Key] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)


@dataclass
class Measured:
    """The results of all tools on one model.

    Attributes:
        model: Name of the model.
        ops: The op of each intermediate value, without the results of Constant.
        made: The inferred types by tool.
        was_run: Whether the types were compared with runs on onnxruntime.
    """

    model: str
    ops: dict[Key, str]
    made: dict[str, Inferred]
    was_run: bool

    def values(self) -> set[Key]:
        """Return the values except those for which a tool infers another type than a tensor."""
        return set(self.ops).difference(*(each.others for each in self.made.values()))


def shapes(
    folder: Path,
    models: Sequence[str],
    environment: Path | None,
    output: Path | None,
    limits: Limits,
) -> None:
    """Print the table and the failures, and write them to ``output`` unless this is None.

    Args:
        folder: Temporary folder for the results of the tools.
        models: Files and folders of models; the project's ``models`` folder if empty.
        environment: Virtual environment with tools that are missing in the current one, or None.
        output: Folder for the text and the data.
        limits: Time and memory limits of a tool for one model.
    """
    pythons, versions = _installed(environment)
    given = [Path(model) for model in models or [ROOT / "models"]]
    paths = sorted({p for m in given for p in (m.rglob("*.onnx") if m.is_dir() else [m])})
    measured: list[Measured] = []
    for path in _distinct(paths):
        bare = folder / "bare.onnx"
        ops = _write_without_types(path, bare)
        if not ops:
            continue
        name = path.parent.name if path.stem == "model" else path.stem
        made = {
            tool: _infer(tool, python, bare, folder / f"{tool}.onnx", limits)
            for tool, python in pythons.items()
        }
        measured.append(Measured(name, ops, made, _compare_with_runs(bare, made, limits)))
        counts = [f"{tool} {len(each.ranks)}" for tool, each in made.items()]
        print(f"{name}: {len(ops)} values; ranks: {', '.join(counts)}", file=sys.stderr)
    tools = ", ".join(f"{tool} {version}" for tool, version in versions.items())
    shown = [_sums(measured), "", *_missing(measured), *_failures(measured), "", tools]
    text = rendered(110, *shown)
    print(text)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "shapes.txt").write_text(text)
        document = json.dumps([_document(each) for each in measured], indent=1)
        (output / "shapes.json").write_text(document + "\n")


def _installed(environment: Path | None) -> tuple[dict[str, str], dict[str, str]]:
    """Return the Python and the version of each tool that is installed."""
    pythons: dict[str, str] = {}
    versions: dict[str, str] = {}
    candidates = [sys.executable]
    if environment is not None:
        candidates.append(str(environment / "bin" / "python"))
    for tool in _TOOLS:
        for python in candidates:
            done = subprocess.run([python, "-c", _script(tool)], capture_output=True, text=True)
            if done.returncode == 0:
                pythons[tool] = python
                versions[tool] = done.stdout.strip()
                break
        else:
            print(f"{tool} is not installed: skipped", file=sys.stderr)
    return pythons, versions


def _script(tool: str) -> str:
    package, imports, call = _TOOLS[tool]
    return _WORKER.format(package=package, imports=imports, call=call)


def _distinct(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield one file for each distinct content."""
    known: set[str] = set()
    for path in paths:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in known:
            known.add(digest)
            yield path


def _graphs(graph: Graph, key: Key = ()) -> Iterator[tuple[Key, Graph]]:
    """Yield a graph and its subgraphs with their paths."""
    yield key, graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g, (*key, *node.output[:1], attribute.name))


def _write_without_types(path: Path, target: Path) -> dict[Key, str]:
    """Write a model without the types of intermediate values, and return the op of each value.

    The values are those of `Measured.ops`. If the model cannot be read, the result is empty.
    """
    try:
        model = onnx.load(path)
    except Exception as error:
        print(f"{path.name} cannot be read: {error}", file=sys.stderr)
        return {}
    ops: dict[Key, str] = {}
    for key, graph in _graphs(model.graph):
        del graph.value_info[:]
        outputs = {value.name for value in graph.output}
        for node in graph.node:
            if node.op_type == "Constant":
                continue
            op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            ops.update({(*key, name): op for name in node.output if name and name not in outputs})
    for function in model.functions:
        for _, graph in _graphs(function):
            del graph.value_info[:]
    onnx.save(model, target)
    return ops


def _declared_names(path: Path) -> set[str]:
    """Return the names of dimensions of a model's inputs and outputs."""
    graph = onnx.load(path, load_external_data=False).graph
    values = [*graph.input, *graph.output]
    return {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim} - {""}


def _infer(tool: str, python: str, source: Path, target: Path, limits: Limits) -> Inferred:
    """Run a tool on a model, write its result to a file, and return the inferred types."""
    target.unlink(missing_ok=True)
    command = [python, "-c", _script(tool), str(source), str(target)]
    run = measure(command, limits.seconds, limits.memory)
    if run.error or not target.exists():
        lines = run.error.strip().splitlines() or ["the tool wrote no result"]
        return Inferred(lines[-1][:160], run.cpu)
    model = onnx.load(target)
    names = _declared_names(source)
    found = Inferred(seconds=json.loads(Path(f"{target}.json").read_text()))
    for key, graph in _graphs(model.graph):
        for info in graph.value_info:
            _classify(info, (*key, info.name), names, found)
    return found


def _compare_with_runs(source: Path, made: dict[str, Inferred], limits: Limits) -> bool:
    """Record the wrong types of all tools, and return whether the types could be compared.

    The comparison is not possible if onnxruntime fails on the model or exceeds a limit.
    """
    results = {str(source.with_name(f"{tool}.onnx")): m for tool, m in made.items() if not m.error}
    target = source.with_name("wrong.json")
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.benchmarks.shape_check", str(source), str(target)]
    run = measure([*command, *results], limits.seconds, limits.memory)
    if run.error or not target.exists():
        return False
    for path, names in json.loads(target.read_text()).items():
        results[path].wrong.update(names)
    return True


def _classify(info: onnx.ValueInfoProto, key: Key, names: set[str], found: Inferred) -> None:
    kind = info.type.WhichOneof("value")
    if kind is not None and kind != "tensor_type":
        found.others.add(key)
    tensor = info.type.tensor_type
    if tensor.elem_type:
        found.dtypes.add(key)
    if not tensor.HasField("shape"):
        return
    found.ranks.add(key)
    if all(_is_named(dim, names) for dim in tensor.shape.dim):
        found.sizes.add(key)


def _is_named(dim: onnx.TensorShapeProto.Dimension, names: set[str]) -> bool:
    """Return whether a size is a number or an expression of these names."""
    if dim.HasField("dim_value"):
        return True
    text = dim.dim_param
    return bool(text) and (text in names or set(_NAMES.findall(text)) <= names | _FUNCTIONS)


def _sums(measured: Sequence[Measured]) -> Table:
    """Return a table with the share of values that each tool infers, over all models."""
    table = new_table("inferred by", "failed", "dtype", "rank", "all sizes", "wrong", "CPU")
    total = sum(len(each.values()) for each in measured)
    for tool in measured[0].made if measured else ():
        made = [(each.values(), each.made[tool]) for each in measured]
        known = [
            sum(len(values & getattr(found, kind)) for values, found in made)
            for kind in ("dtypes", "ranks", "sizes")
        ]
        table.add_row(
            tool,
            str(sum(bool(found.error) for _, found in made)),
            *(f"{100 * count / max(1, total):.2f} %" for count in known),
            str(sum(len(found.wrong) for _, found in made)),
            f"{sum(found.seconds for _, found in made if not found.error):.1f} s",
        )
    table.caption = (
        f"{len(measured)} models with {total:,} intermediate values; a failed model has no types; "
        f"wrong: types that differ in a run of one of {sum(m.was_run for m in measured)} models; "
        "CPU: time of the calls that succeed"
    )
    return table


def _missing(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield a text for dtypes, ranks and sizes: the ops whose results only other tools infer."""
    for kind, text in (("dtypes", "dtype"), ("ranks", "rank"), ("sizes", "sizes")):
        ops: Counter[str] = Counter()
        for each in measured:
            if OWN not in each.made:
                continue
            others = [getattr(m, kind) for tool, m in each.made.items() if tool != OWN]
            known = set[Key]().union(*others) & each.values()
            ops.update(each.ops[key] for key in known - getattr(each.made[OWN], kind))
        listed = ", ".join(f"{count} {op}" for op, count in ops.most_common(20)) or "none"
        yield f"{text} inferred by another tool only: {listed}"


def _failures(measured: Sequence[Measured]) -> Iterator[str]:
    for each in measured:
        for tool, found in each.made.items():
            if found.error:
                yield f"{tool} fails on {each.model}: {found.error}"
            if found.wrong:
                names = ", ".join(sorted(found.wrong)[:3])
                yield f"{tool} is wrong on {each.model}: {len(found.wrong)} values, such as {names}"
        if not each.was_run:
            yield f"not compared with a run: {each.model}"


def _document(measured: Measured) -> dict[str, object]:
    """Return the figures of a model for JSON."""
    values = measured.values()
    tools = {
        tool: {
            "error": found.error,
            "seconds": round(found.seconds, 4),
            "dtype": len(values & found.dtypes),
            "rank": len(values & found.ranks),
            "sizes": len(values & found.sizes),
            "wrong": sorted(found.wrong),
        }
        for tool, found in measured.made.items()
    }
    return {
        "model": measured.model,
        "values": len(values),
        "was_run": measured.was_run,
        "tools": tools,
    }
