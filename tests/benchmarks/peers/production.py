"""``python -m tests.benchmarks peers --production``: compare tools on models in PyPI packages.

Each tool optimizes each model in a separate process, and the result is compared with the model on
onnxruntime, node by node. Then the model and the results that onnxruntime can run are timed, in
turns. ``onnxfold bench`` times runs of onnxruntime's default session with one thread on the same
inputs. Another process times the creation of sessions.

``--output DIR`` receives ``production.json`` and ``production.txt``. An existing
``production.json`` is updated: only the selected models are measured again.
"""

import fnmatch
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from tests.benchmarks.peers.judge import Limits, count, judged, stored_bytes
from tests.benchmarks.peers.peer_tables import new_table, rendered
from tests.benchmarks.peers.tools import commands, environment, measure
from tests.production_models.models import MODELS, NotFetched

ROOT = Path(__file__).parents[3]
OURS = ("-O1", "-O2", "target")
_OTHERS = ("onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "onnxruntime")
_ALLOWED = 64 << 10
"""Bytes by which a result may be larger than its model without counting as grown.

1 % of the model's size is allowed instead if this is more."""
_SECONDS = 500  # time limit of `onnxfold bench` for a model and all its results
_SESSIONS = """
import json, sys, time
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 4
taken = [[] for _ in sys.argv[2:]]
for _ in range(int(sys.argv[1]) + 1):
    for seconds, path in zip(taken, sys.argv[2:]):
        begin = time.process_time()
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        seconds.append(time.process_time() - begin)
print(json.dumps([seconds[1:] for seconds in taken]))
"""
"""A script that prints a list of times for each model, as JSON.

A time is the CPU time of creating a session, in seconds. The models take turns, and the first turn
is not included."""


def production(
    folder: Path,
    rounds: int,
    patterns: Sequence[str],
    environment_folder: Path | None,
    output: Path | None,
    limits: Limits,
) -> None:
    """Print the tables, and write them to ``output`` unless this is None.

    Args:
        folder: Temporary folder for the results of the tools.
        rounds: Number of rounds in which each result is timed; 0 skips timing.
        patterns: Globs of names of models (see `tests.production_models`), or paths of other
            models. An empty list selects all production models.
        environment_folder: Virtual environment of the tools; None uses a temporary one.
        output: Folder for the tables and the data.
        limits: Time and memory limits of a tool.
    """
    python = environment(environment_folder or folder / "environment", ROOT)
    kept = output / "production.json" if output is not None else None
    found: dict[str, Any] = {}
    if kept is not None and kept.exists():
        found = json.loads(kept.read_text())["models"]
    for name, path, feeds in _chosen(patterns):
        where = Path(tempfile.mkdtemp(dir=folder))
        known = found.setdefault(name, {"tools": {}})
        known["original"] = {"nodes": count(path), "bytes": stored_bytes(path)}
        made = _measured(name, path, feeds, where, python, rounds, limits)
        known["original"].update(made.pop("original", {}))
        known["tools"].update(made)
        shutil.rmtree(where)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            document = {"models": {n: found[n] for n in sorted(found)}}
            kept.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    table = text(found)
    print(table)
    if output is not None:
        (output / "production.txt").write_text(table)


def _chosen(
    patterns: Sequence[str],
) -> Iterable[tuple[str, Path, Mapping[str, np.ndarray] | None]]:
    """Yield the name, the path and the inputs of each selected model.

    The inputs are None for a model that is selected by its path. A production model that cannot be
    fetched is skipped.
    """
    paths = [Path(p) for p in patterns if Path(p).exists()]
    for path in paths:
        yield f"{path.parent.name}/{path.stem}", path, None
    globs = [p for p in patterns if not Path(p).exists()] or ([] if paths else ["*"])
    for name, model in MODELS.items():
        if any(fnmatch.fnmatchcase(name, glob) for glob in globs):
            try:
                yield name, model.fetch(), model.feeds()
            except NotFetched as reason:
                print(reason, file=sys.stderr)


def _measured(
    name: str,
    path: Path,
    feeds: Mapping[str, np.ndarray] | None,
    where: Path,
    python: Path,
    rounds: int,
    limits: Limits,
) -> dict[str, dict[str, Any]]:
    """Return the result, the size and the times of each tool on a model.

    The entry "original" has the times of the model itself. Without ``rounds``, nothing is timed.
    """
    found: dict[str, dict[str, Any]] = {}
    runnable = {"original": path}
    given = None
    if feeds is not None:
        given = where / "feeds.npz"
        np.savez(given, **feeds)
    for tool, command in _commands(python, path, where).items():
        target = where / tool / "out.onnx"
        target.parent.mkdir()
        run = measure(command, limits.seconds, limits.memory)
        made = judged(tool, run.error, path, target, python, limits.seconds, given)
        found[tool] = {
            "result": made.verdict,
            "nodes": made.nodes,
            "bytes": made.nbytes,
            "seconds": round(run.wall, 2),
        }
        if made.reason:
            found[tool]["reason"] = made.reason
        if made.verdict != "failed":
            runnable[tool] = target
        print(f"{name}: {tool} {made.verdict} {made.nodes} {made.reason}", file=sys.stderr)
    timed = _timed(python, runnable, given, rounds) if rounds else {}
    for tool, figures in timed.items():
        found.setdefault(tool, {}).update(figures)
    return found


def _commands(python: Path, path: Path, where: Path) -> dict[str, Sequence[str]]:
    """Return the commands of onnxfold by their names in `OURS`, and of other tools by tool."""
    options = {"-O1": ["-O1"], "-O2": ["-O2"], "target": ["-O2", "--target", "onnxruntime"]}
    fold = [str(python.with_name("onnxfold")), "optimize", str(path), "-q", "-o"]
    made = {tool: [*fold, str(where / tool / "out.onnx"), *options[tool]] for tool in OURS}
    return made | {t: commands(python, path, where / t / "out.onnx")[t] for t in _OTHERS}


def _timed(
    python: Path,
    models: Mapping[str, Path],
    feeds: Path | None,
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """Time the original and the results of tools, and return the figures of each.

    The figures are the number of nodes after onnxruntime's optimization, and the CPU time of a run
    and of creating a session. The times of the original are in seconds. The figures of a result are
    speedups over the original. Results that ``onnxfold bench`` cannot run are left out. If the
    original cannot be timed, its only figure is the reason ("not timed").
    """
    command = [str(python.with_name("onnxfold")), "bench", *map(str, models.values()), "--json"]
    command += ["--threads", "1", "--rounds", str(rounds)]
    if feeds is not None:
        command += ["--feeds", str(feeds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return {"original": {"not timed": f"takes longer than {_SECONDS} s"}}
    if done.returncode:
        if len(models) > 1 and (others := _without_the_broken(models, done.stderr)):
            return _timed(python, others, feeds, rounds)
        return {"original": {"not timed": (done.stderr.strip().splitlines() or [""])[0]}}
    benches = json.loads(done.stdout)["models"]
    sessions = _sessions(python, models.values(), rounds)
    first = benches[0]["cpu"]["1"]["median"]
    found = {}
    for tool, bench, session in zip(models, benches, sessions, strict=True):
        run = bench["cpu"]["1"]["median"]
        found[tool] = {
            "nodes after onnxruntime": sum(bench["ops"].values()),
            "session": round(sessions[0] / session, 3),
            "run": round(first / run, 3),
        }
        if tool == "original":
            found[tool] |= {"session": session, "run": run}
    return found


def _sessions(python: Path, models: Iterable[Path], rounds: int) -> list[float]:
    command = [str(python), "-c", _SESSIONS, str(rounds), *map(str, models)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [statistics.median(seconds) for seconds in json.loads(done.stdout)]


def _without_the_broken(models: Mapping[str, Path], error: str) -> dict[str, Path]:
    """Return the models except those with paths in an error.

    The result is empty if the error contains no path or the path of the original.
    """
    left = {tool: path for tool, path in models.items() if str(path) not in error}
    return left if "original" in left and len(left) < len(models) else {}


def text(found: Mapping[str, Any]) -> str:
    return rendered(180, _results(found), _nodes(found), _speed(found))


def _is_grown(original: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    before = original["bytes"]
    return (made["bytes"] or 0) > before + max(_ALLOWED, before // 100)


def _results(found: Mapping[str, Any]) -> Table:
    """Return a table with a row for each tool. It has only models measured with every tool."""
    kinds = ("equal", "near", "differs", "unchecked", "failed")
    tools = _tools(found)
    shared = [m for m in found.values() if all(tool in m["tools"] for tool in tools)]
    table = new_table("tool", *kinds, "grown", "nodes", "runs", "sessions")
    made_by_all = [m for m in shared if all(m["tools"][tool]["nodes"] for tool in tools)]
    for tool in tools:
        pairs = [(m["original"], m["tools"][tool]) for m in shared]
        results = [made["result"] for _, made in pairs]
        timed = [made for _, made in pairs if "run" in made]
        table.add_row(
            tool,
            *(str(results.count(kind)) for kind in kinds),
            str(sum(_is_grown(original, made) for original, made in pairs)),
            f"{sum(m['tools'][tool]['nodes'] for m in made_by_all):,}",
            _mean(made["run"] for made in timed),
            _mean(made["session"] for made in timed),
        )
    before = sum(m["original"]["nodes"] for m in made_by_all)
    table.caption = (
        f"{len(shared)} models; grown: by more than 64 KiB and 1 %; nodes: total over the "
        f"{len(made_by_all)} models\nthat every tool could process; originally {before:,}; runs, "
        "sessions: CPU time\nof a run and of creating a session, original divided by result, "
        "geometric\nmeans of the models timed"
    )
    return table


def _tools(found: Mapping[str, Any]) -> list[str]:
    """Return the tools that were measured on any model, in the order of the tables."""
    tried = {tool for model in found.values() for tool in model["tools"]}
    return [tool for tool in (*OURS, *_OTHERS) if tool in tried]


def _mean(ratios: Iterable[float]) -> str:
    logs = [math.log(ratio) for ratio in ratios]
    return f"{math.exp(sum(logs) / len(logs)):.3f}" if logs else ""


def _each(found: Mapping[str, Any], cell: Callable[[dict[str, Any], dict[str, Any]], str]) -> Table:
    tools = _tools(found)
    table = new_table("model", *tools)
    for name, model in sorted(found.items()):
        cells = (
            cell(model["original"], model["tools"][tool]) if tool in model["tools"] else ""
            for tool in tools
        )
        table.add_row(name, *cells)
    return table


def _nodes(found: Mapping[str, Any]) -> Table:
    marks = {"equal": "", "near": " ~", "differs": " differs", "unchecked": " ?"}

    def cell(original: dict[str, Any], made: dict[str, Any]) -> str:
        if made["result"] == "failed":
            return "invalid" if "does not run" in made.get("reason", "") else "failed"
        after = made.get("nodes after onnxruntime")
        told = f"{made['nodes']}{marks[made['result']]}"
        grown = " grown" if _is_grown(original, made) else ""
        return told + grown + (f" ({after})" if after is not None else "")

    table = _each(found, cell)
    table.caption = (
        "nodes without Constant, and in brackets after onnxruntime's full optimization; "
        "~: within 1e-4 relative and 1e-5 absolute, otherwise equal bit for bit"
    )
    return table


def _speed(found: Mapping[str, Any]) -> Table:
    def cell(original: dict[str, Any], made: dict[str, Any]) -> str:
        return f"{made['run']:.2f} {made['session']:.2f}" if "run" in made else ""

    table = _each(found, cell)
    table.caption = "CPU time of a run and of creating a session, original divided by result"
    return table
