"""``python -m tests.benchmarks peers``: onnxfold and the other tools, over many models.

The tools are installed in an environment of their own, ``--environment DIR``, which is made if it
is not there. Each tool makes each model in a whole process, and the tools take turns; medians are
shown. What comes out is compared with the model on onnxruntime, node by node, on random inputs.
``--output DIR`` gets the table, ``peers.json`` and ``peers.svg``.
"""

from __future__ import annotations

import io
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import onnx
from rich import box
from rich.console import Console
from rich.table import Table

from tests.benchmarks.models import scalar_chain, transformer
from tests.benchmarks.processes import measure

ROOT = Path(__file__).parents[2]
_PACKAGES = ("onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "onnxruntime", "matplotlib")
_SAVE = """
def save(model):
    large = model.ByteSize() > 1 << 30
    onnx.save(model, sys.argv[2], save_as_external_data=large, size_threshold=1024)
"""
_SCRIPTS = {
    "onnxsim": "save(__import__('onnxsim').simplify(sys.argv[1])[0])",
    "onnxslim": "__import__('onnxslim').slim(sys.argv[1], sys.argv[2])",
    "onnxscript": "import onnxscript.optimizer as o; save(o.optimize(onnx.load(sys.argv[1])))",
    "onnxoptimizer": "save(__import__('onnxoptimizer').optimize(onnx.load(sys.argv[1])))",
    "onnxruntime": """
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = sys.argv[2]
ort.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])
""",
}
"""What the other tools do when they are told nothing but the model."""


@dataclass
class Made:
    """What one tool made of one model."""

    tool: str
    verdict: str
    """"equal" to the bit, "near" (1e-4 relative, 1e-5 absolute), "differs" or "failed"."""
    reason: str = ""
    nodes: int | None = None
    """Of all graphs and functions, without Constant."""
    nbytes: int | None = None
    """With external data."""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_mb: float = 0


@dataclass
class Compared:
    """All tools on one model."""

    model: str
    nodes: int
    nbytes: int
    made: list[Made]


def peers(
    folder: Path,
    rounds: int,
    models: Sequence[str],
    environment: Path | None,
    output: Path | None,
    large: bool,
) -> None:
    """Print the tables, and write them into a folder.

    Args:
        folder: For what the tools write.
        rounds: How many times each tool makes each model.
        models: Files and folders of models; the project's own if there is none.
        large: Also models that are made for it: of 1,000 to 100,000 nodes, and 0.2 to 2.2 GB.
        environment: That of the tools; a new one, which is removed, if it is None.
        output: Where the table, the figures and the data go.
    """
    python = _environment(environment or folder / "environment")
    found = sorted(p for m in models or [ROOT / "models"] for p in _models(Path(m)))
    found += _generated(folder / "generated") if large else []
    compared = [_compare(path, name, python, rounds, folder) for name, path in _named(found)]
    table = _text(compared, rounds, python)
    print(table)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "peers.txt").write_text(table)
        (output / "peers.json").write_text(json.dumps([asdict(c) for c in compared], indent=1))
        draw = [python, ROOT / "tests/benchmarks/draw_peers.py", output]
        subprocess.run(list(map(str, draw)), check=True)


def _generated(folder: Path) -> list[Path]:
    folder.mkdir()
    for nodes in (1_000, 10_000, 100_000):
        scalar_chain(folder / f"chain-{nodes}.onnx", nodes // 3)
    transformer(folder / "llama-168MB.onnx", 1024, 2816, 4, 16_000)
    transformer(folder / "llama-2.2GB.onnx", 2048, 5632, 19, 32_000)
    return sorted(folder.glob("*.onnx"))


def _environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *_PACKAGES], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", ROOT], check=True)
    return python


def _models(path: Path) -> Iterator[Path]:
    yield from sorted(path.rglob("*.onnx")) if path.is_dir() else [path]


def _named(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Each with its file name, or that of its folder where all are called the same."""
    alike = len({path.stem for path in paths}) < len(paths)
    for path in paths:
        yield (path.parent.name if alike else path.stem), path


def _commands(python: Path, source: Path, target: Path) -> dict[str, list[str]]:
    fold = [str(python.with_name("onnxfold")), "optimize", str(source), "-o", str(target), "-q"]
    return {
        "onnxfold": fold,
        "onnxfold -O2": [*fold, "-O2"],
        **{
            name: [
                *(str(python), "-c", f"import sys, onnx\n{_SAVE}\n{script}"),
                *(str(source), str(target)),
            ]
            for name, script in _SCRIPTS.items()
        },
    }


def _compare(path: Path, name: str, python: Path, rounds: int, folder: Path) -> Compared:
    where = folder / "made"
    made: dict[str, Made] = {}
    for _ in range(rounds):
        for tool, command in _commands(python, path, where / "out.onnx").items():
            found = made.get(tool)
            if found is not None and found.verdict == "failed":
                continue
            where.mkdir()
            run = measure(command)
            if found is None:
                found = made[tool] = _judged(tool, run.error, path, where / "out.onnx", python)
            found.wall.append(run.wall)
            found.cpu.append(run.cpu)
            found.peak_mb = max(found.peak_mb, run.peak_mb)
            shutil.rmtree(where)
    return Compared(name, _count(path), _size(path), list(made.values()))


def _judged(tool: str, error: str, source: Path, target: Path, python: Path) -> Made:
    if error or not target.exists():
        lines = error.strip().splitlines() or ["it wrote nothing"]
        return Made(tool, "failed", lines[-1][:200])
    try:
        made = Made(tool, "equal", nodes=_count(target), nbytes=_size(target))
    except FileNotFoundError as missing:
        return Made(
            tool, "failed", f"its result refers to {Path(missing.filename).name}: not there"
        )
    command = [python.with_name("onnxfold"), "compare", source, target, "--seeds", "2", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode == 2:
        made.verdict, made.reason = "failed", done.stderr.strip()[:200]
    elif done.returncode == 1:
        near = [*command, "--rtol", "1e-4", "--atol", "1e-5"]
        within = subprocess.run(list(map(str, near)), capture_output=True).returncode == 0
        made.verdict = "near" if within else "differs"
    return made


def _count(path: Path) -> int:
    model = onnx.load(path, load_external_data=False)
    graphs = [model.graph.node, *(f.node for f in model.functions)]
    count = 0
    while graphs:
        for node in graphs.pop():
            count += node.op_type != "Constant"
            graphs += [a.g.node for a in node.attribute if a.HasField("g")]
            graphs += [g.node for a in node.attribute for g in a.graphs]
    return count


def _size(path: Path) -> int:
    model = onnx.load(path, load_external_data=False)
    names = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in names)


def _text(compared: Sequence[Compared], rounds: int, python: Path) -> str:
    text = io.StringIO()
    console = Console(width=120, file=text)
    console.print(_sums(compared))
    console.print(_each(compared))
    freeze = subprocess.run(
        [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    versions = [line for line in freeze if line.lower().startswith("onnx")]
    console.print(
        f"{rounds} rounds on {platform.machine()}, {platform.system()}, {time.strftime('%Y-%m-%d')}"
    )
    console.print(", ".join(line.replace(" @ ", "==").split("==file")[0] for line in versions))
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _sums(compared: Sequence[Compared]) -> Table:
    """A row for each tool, over the models that all of them made."""
    tools = [made.tool for made in compared[0].made]
    by_all = [c for c in compared if all(m.nodes is not None for m in c.made)]
    table = _table("tool", "equal", "near", "differs", "failed", "grown", "nodes", "wall", "memory")
    nodes = sum(c.nodes for c in by_all)
    table.add_row("as it came", *[""] * 5, f"{nodes:,}", "", "")
    for k, tool in enumerate(tools):
        mine = [c.made[k] for c in compared]
        verdicts = [made.verdict for made in mine]
        grown = sum(
            made.nbytes is not None and made.nbytes > c.nbytes
            for made, c in zip(mine, compared, strict=True)
        )
        shared = [c.made[k] for c in by_all]
        wall = sum(statistics.median(m.wall) for m in shared)
        peak = max((m.peak_mb for m in shared), default=0)
        table.add_row(
            tool,
            *(str(verdicts.count(v)) for v in ("equal", "near", "differs", "failed")),
            str(grown),
            f"{sum(m.nodes or 0 for m in shared):,}",
            f"{wall:.1f} s",
            f"{peak:.0f} MB",
        )
    table.caption = f"nodes, wall and the highest memory of the {len(by_all)} models made by all"
    return table


def _each(compared: Sequence[Compared]) -> Table:
    table = _table("model", "tool", "result", "nodes", "bytes", "wall", "CPU", "memory")
    for c in compared:
        table.add_row(c.model, "", "", f"{c.nodes:,}", f"{c.nbytes / 1e6:.1f} MB", "", "", "")
        for m in c.made:
            sizes = ("", "") if m.nodes is None else (f"{m.nodes:,}", f"{m.nbytes / 1e6:.1f} MB")
            wall, cpu = statistics.median(m.wall), statistics.median(m.cpu)
            took = (f"{wall:.2f} s", f"{cpu:.2f} s", f"{m.peak_mb:.0f} MB")
            table.add_row("", m.tool, m.verdict, *sizes, *took)
            if m.reason:
                table.add_row("", "", m.reason, *[""] * 5)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for k, column in enumerate(columns):
        table.add_column(
            column, justify="left" if k == 0 or column in ("tool", "result") else "right"
        )
    return table
