"""``python -m tests.benchmarks census --model DIR``: list the rules and engines that models use.

Each model is optimized at each level, in one of ``--jobs`` processes. The census records the rules
that apply, and the ways in which large constants are computed. It also records the ops that NumPy
kernels compute, and the ops that onnxruntime computes, in the same and in a child process. Models
with LoRA weights are also split, and the census also records the rules that then apply.

The output is JSON, which ``--output FILE`` also receives. For each rule, kernel and op, the JSON
has the first level, the number of models and the names of a few models.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import onnx

from onnxfold import OnnxFoldError, optimize_file
from onnxfold.fold import engines
from onnxfold.fold.block_execution import Streams
from onnxfold.ops.numpy_kernels import NumpyKernel
from onnxfold.rewrite.driver import Rewriter, RewriteReport
from onnxfold.rewrite.rule import builtin_rule_sets
from onnxfold.runtime.split_model import split_in_memory

LEVELS: dict[str, dict[str, Any]] = {
    "-O0": {"level": 0},
    "-O1": {"level": 1},
    "-O2": {"level": 2},
    "target": {"level": 2, "target": "onnxruntime"},
    "all": {"level": 2, "enable": [found.name for found in builtin_rule_sets() if found.optional]},
}
"""The options of each run; "all" enables every opt-in rule set."""
_ADAPTER = "lora_"
"""Text that the files of models with LoRA weights contain."""
_MOST_SHOWN = 6
"""Maximum number of model names for each rule, kernel or op."""
_SECONDS = 300
"""Time limit for a model in seconds, for each level."""

Found = dict[str, dict[str, str]]
"""The first level at which a model uses a rule, kernel or op, by kind and name."""


def census(models: Sequence[str], output: Path | None, jobs: int) -> None:
    """Print the census of models, and write it to ``output`` unless this is None.

    Args:
        models: Files, and folders in which all ``.onnx`` files are included.
        output: File for the census.
        jobs: Number of processes.
    """
    used: dict[str, Found] = {}
    failed: dict[str, str] = {}
    context = multiprocessing.get_context("spawn")
    tasks = list(_distinct(models))
    with context.Pool(jobs, maxtasksperchild=8) as pool:
        running = [(name, pool.apply_async(look_at, (path,))) for name, path in tasks]
        for number, (name, result) in enumerate(running, 1):
            try:
                used[name] = result.get(_SECONDS * len(LEVELS))
            except (OnnxFoldError, multiprocessing.TimeoutError) as error:
                failed[name] = f"{type(error).__name__}: {error}"
            print(f"{number}/{len(tasks)} {name} {failed.get(name, '')}", file=sys.stderr)
    text = _text(_by_name(used), sorted(used), failed)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    print(text)


def _distinct(models: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each model. Only the first of several equal files is included."""
    seen: set[bytes] = set()
    for given in map(Path, models):
        paths = sorted(given.rglob("*.onnx")) if given.is_dir() else [given]
        for path in paths:
            digest = hashlib.blake2b(path.read_bytes()).digest()
            if digest not in seen:
                seen.add(digest)
                name = path.relative_to(given) if given.is_dir() else Path(path.name)
                yield name.with_suffix("").as_posix(), path


def look_at(path: Path) -> Found:
    """Optimize a model at all levels, and return the first level of each rule, kernel and op.

    A model that contains `_ADAPTER` is also split. Rules that apply only then have the level
    "split".
    """
    found: Found = defaultdict(dict)
    for level, options in LEVELS.items():
        with tempfile.TemporaryDirectory() as folder, _Watch() as watch:
            report = optimize_file(path, Path(folder, "out.onnx"), fsync=False, **options)
        watch.counts["rules"].update(report.rewrites)
        if report.pool["spilled_bytes"]:
            watch.counts["large"]["scratch file"] += 1
        for kind, counts in watch.counts.items():
            for name in counts:
                found[kind].setdefault(name, level)
    if _ADAPTER.encode() in path.read_bytes():
        for name in _rules_of_split(path):
            found["rules"].setdefault(name, "split")
    return {kind: dict(levels) for kind, levels in found.items()}


def _rules_of_split(path: Path) -> Counter[str]:
    """Split a model with its adapter as runtime constants, and count the rules that apply."""
    counts: Counter[str] = Counter()
    run = Rewriter.run

    def counted(rewriter: Rewriter) -> RewriteReport:
        report = run(rewriter)
        counts.update(report.counts)
        return report

    with mock.patch.object(Rewriter, "run", counted):
        split_in_memory(path, backend="onnxruntime", level=2, runtime_constants=[f"*{_ADAPTER}*"])
    return counts


class _Watch:
    """Count the ops of each engine until the context ends, by patching the engines' functions."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self._patches = [
            self._wrap(NumpyKernel, "__call__", lambda kernel, *_: [("kernels", kernel.op_type)]),
            self._wrap(engines, "onnxruntime", lambda model, *_: _ops("onnxruntime", model)),
            self._wrap(engines, "evaluate_isolated", lambda model, *_: _ops("onnxruntime", model)),
            self._wrap(
                Streams, "compute", lambda _, of: [("large", f"{of.kind.value}: {of.node.op_type}")]
            ),
        ]

    def __enter__(self) -> _Watch:
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _wrap(self, owner: Any, name: str, describe: Callable[..., list[tuple[str, str]]]) -> Any:
        """Return a patch of a function that counts the entries that ``describe`` returns.

        ``describe`` is called with the arguments of each call that succeeds. Its entries are pairs
        of kind and name.
        """
        original = getattr(owner, name)
        is_child = name == "evaluate_isolated"

        def call(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            for kind, what in describe(*arguments):
                self.counts[f"{kind} in a child process" if is_child else kind][what] += 1
            return result

        return mock.patch.object(owner, name, call)


def _ops(engine: str, model: bytes) -> list[tuple[str, str]]:
    nodes = onnx.load_model_from_string(model).graph.node
    return [(engine, f"{n.domain}::{n.op_type}" if n.domain else n.op_type) for n in nodes]


def _by_name(used: dict[str, Found]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the first level, the number of models, and the models' names, by kind and name."""
    order = [*LEVELS, "split"]
    table: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for model, found in sorted(used.items()):
        for kind, names in found.items():
            for name, level in names.items():
                entry = table[kind].setdefault(name, {"level": level, "count": 0, "models": []})
                entry["level"] = min(entry["level"], level, key=order.index)
                entry["count"] += 1
                entry["models"].append(model)
    return table


def _shown(name: str, entry: dict[str, Any]) -> list[str]:
    """Choose at most `_MOST_SHOWN` of an entry's models, and return their names in sorted order.

    The model in the rule's ``seen_in`` comes first, then the folders take turns.
    """
    models: list[str] = entry["models"]
    named = [r.seen_in for rules in builtin_rule_sets() for r in rules if r.name == name]
    models = sorted(models, key=lambda model: model not in named)
    folders: dict[str, list[str]] = defaultdict(list)
    for model in models:
        folders[model.split("/")[0]].append(model)
    turns = [m for k in range(_MOST_SHOWN) for found in folders.values() for m in found[k : k + 1]]
    return sorted(turns[:_MOST_SHOWN])


def _text(
    table: dict[str, dict[str, dict[str, Any]]], models: list[str], failed: dict[str, str]
) -> str:
    """Return JSON with one line per name."""
    lines = [f' "models": {len(models)}', f' "failed": {json.dumps(failed)}']
    for kind, entries in sorted(table.items()):
        rows = [
            f"  {json.dumps(name)}: {json.dumps({**entry, 'models': _shown(name, entry)})}"
            for name, entry in sorted(entries.items())
        ]
        lines.append(f" {json.dumps(kind)}: {{\n" + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"
