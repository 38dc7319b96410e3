"""``python -m tests.benchmarks peers``: compare onnxfold with other tools on many models.

The tools are installed in the virtual environment ``--environment DIR``, which is created if
necessary. Each tool optimizes each model in a separate process. The tools take turns, and the
tables show median times and the highest memory. Each result is compared with its model on
onnxruntime, node by node, on random inputs.

``--nodes`` and ``--gigabytes`` add series of generated models that show how time and memory grow
with the size. A tool that fails on a model of a series is not run on larger models of the series.

``--output DIR`` receives ``peers.txt`` with the tables, ``peers.json`` and ``peers.svg``. With
``--gigabytes``, ``overview.svg`` is also written if ``DIR`` contains ``production.json``.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.benchmark_models import scalar_chain, transformer_of
from tests.benchmarks.peers.judge import Compared, Limits, Made, count, judged, stored_bytes
from tests.benchmarks.peers.peer_tables import text
from tests.benchmarks.peers.tools import COPY, commands, environment, measure

ROOT = Path(__file__).parents[3]
_LONG = 20
"""A tool that takes more seconds than this for a model runs only once."""


def peers(
    folder: Path,
    rounds: int,
    models: Sequence[str],
    environment_folder: Path | None,
    output: Path | None,
    nodes: Sequence[int],
    gigabytes: Sequence[float],
    limits: Limits,
) -> None:
    """Print the tables, and write them to ``output`` unless this is None.

    Args:
        folder: Temporary folder for the results of the tools.
        rounds: Number of times that each tool optimizes each model, unless it fails or is slow (see
            `_LONG`).
        models: Files and folders of models; the project's ``models`` folder if empty.
        environment_folder: Virtual environment of the tools; None uses a temporary one.
        output: Folder for the tables, the figures and the data.
        nodes: Sizes of generated chains of scalars, in nodes.
        gigabytes: Sizes of generated transformers, in gigabytes.
        limits: Time and memory limits of a tool.
    """
    python = environment(environment_folder or folder / "environment", ROOT)
    compared = []
    for series, name, size, path in _all(folder / "generated", models, nodes, gigabytes):
        smaller = [c for c in compared if c.series == series] if series != "given" else []
        out = [m for c in smaller for m in c.made if m.verdict == "failed"]
        made = _make(name, path, python, rounds, folder / "made", limits, out)
        compared.append(Compared(series, name, size, count(path), stored_bytes(path), made))
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            document = json.dumps([asdict(c) for c in compared], indent=1)
            (output / "peers.json").write_text(document + "\n")
    table = text(compared, python)
    print(table)
    if output is not None:
        (output / "peers.txt").write_text(table)
        subprocess.run([python, Path(__file__).with_name("draw.py"), output], check=True)


def _all(
    generated: Path, models: Sequence[str], nodes: Sequence[int], gigabytes: Sequence[float]
) -> Iterator[tuple[str, str, float, Path]]:
    """Yield the series, the name, the requested size and the path of each model.

    The size is 0 for a model that is not generated. A generated file is deleted when the iteration
    continues.
    """
    given = [Path(model) for model in models or [ROOT / "models"]]
    found = sorted(p for m in given for p in (m.rglob("*.onnx") if m.is_dir() else [m]))
    alike = len({path.stem for path in found}) < len(found)
    for path in found:  # if two files have the same name, all models have the names of folders
        yield "given", path.parent.name if alike else path.stem, 0, path
    for series, sizes in (("nodes", sorted(nodes)), ("bytes", sorted(gigabytes))):
        for number in sizes:
            generated.mkdir()
            if series == "nodes":
                name = f"chain, {number:,} nodes"
                scalar_chain(generated / "in.onnx", int(number) // 3)
            else:
                name = f"transformer, {number:g} GB"
                transformer_of(generated / "in.onnx", int(number * 1e9))
            yield series, name, number, generated / "in.onnx"
            shutil.rmtree(generated)


def _make(
    name: str,
    path: Path,
    python: Path,
    rounds: int,
    where: Path,
    limits: Limits,
    out: Sequence[Made],
) -> list[Made]:
    """Run each tool on a model, and return the results.

    ``out`` has the failures on smaller models of the series. A tool with a failure is not run.
    """
    reasons = {m.tool: m.reason for m in reversed(out)}
    made: dict[str, Made] = {}
    for _ in range(rounds):
        for tool, command in commands(python, path, where / "out.onnx").items():
            found = made.get(tool)
            if tool in reasons:
                made[tool] = Made(tool, "failed", reasons[tool], was_tried=False)
                continue
            if found is not None and (found.verdict == "failed" or found.wall[0] > _LONG):
                continue
            where.mkdir()
            run = measure(command, limits.seconds, limits.memory)
            print(f"{name}: {tool} {run.wall:.1f} s {run.peak_mb:.0f} MB", file=sys.stderr)
            target = where / "out.onnx"
            if found is None and tool == COPY:
                found = Made(tool, "equal", nodes=count(target), nbytes=stored_bytes(target))
                made[tool] = found
            elif found is None:
                found = judged(tool, run.error, path, target, python, limits.seconds)
                made[tool] = found
            found.wall.append(run.wall)
            found.cpu.append(run.cpu)
            found.peak_mb.append(run.peak_mb)
            shutil.rmtree(where)
    return list(made.values())
