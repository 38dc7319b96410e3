"""Collect the data of report pages, and write the pages as HTML or only the data as JSON.

The template, the scripts and the libraries of an HTML page are in ``assets/``.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

import onnxfold
from onnxfold.analysis.constness import select_runtime_constants
from onnxfold.api.options import Options
from onnxfold.fold.pool import Buffer
from onnxfold.ir import storage
from onnxfold.ir.graphs import count_nodes
from onnxfold.ir.storage import PathLike
from onnxfold.ir.storage.save import real_target
from onnxfold.passes import all_passes
from onnxfold.passes.stored_cut import Decision
from onnxfold.rewrite.apply import FROM_KEY, RULE_KEY
from onnxfold.runtime.splitting.weights import weights_as_inputs
from onnxfold.support.errors import UsageError
from onnxfold.support.files import os_error, replacing
from onnxfold.tools.report.inventory import largest_first
from onnxfold.tools.report.page.skeleton import Skeleton, short
from onnxfold.tools.report.summary import Report

if TYPE_CHECKING:
    from onnxfold.runtime.bundles.bundle import Bundle
    from onnxfold.tools.comparison import Comparison

_FORMAT = 1  # version of the document's keys
_FOLDING = "constant-propagation"
_MAX_PLACES = 100  # rewritten values of a rule
_MAX_KEPT = 500  # nodes
_MAX_ROUNDED = 100  # values
_MAX_POINTS = 1000  # of the memory chart
_MAX_TENSORS = 40  # of each model


def write_compare_page(comparison: Comparison, path: PathLike) -> None:
    """Write the page of a comparison of two files, with both graphs.

    Args:
        comparison: The comparison. Its ``a`` and ``b`` are the paths of the models.
        path: The file to write. If the name ends in .json, only the page's data is written.

    Raises:
        OnnxFoldError: The path is invalid, the file cannot be written, or a model cannot be read.
    """
    check_destination(path, comparison.a, comparison.b)
    models = [storage.load(path) for path in (comparison.a, comparison.b)]
    skeletons = [Skeleton(model, title) for model, title in zip(models, "ab", strict=True)]
    for skeleton, other in (skeletons, skeletons[::-1]):
        names = {entry[0] for entry in other.values}
        is_complete = len(other.nodes) == other.total
        for node in skeleton.nodes:
            if is_complete and skeleton.name_of(node) not in names:
                node["gone"] = True
                node["decision"] = f"no value of this name in {other.title}"
    before, after = (dict(sorted(count_nodes(model).items())) for model in models)
    document = {
        "run": {
            "nodes_before": before,
            "nodes_after": after,
            "bytes_before": storage.model_bytes(models[0]),
            "bytes_after": storage.model_bytes(models[1]),
            "check": comparison.to_dict(),
        },
        "graphs": [skeleton.to_dict() for skeleton in skeletons],
    }
    write_page(path, "compare", comparison.a, comparison.b, document)


def write_split_page(bundle: Bundle, source: PathLike, path: PathLike) -> None:
    """Write the page of a bundle, with its manifest and the graphs of the original and the parts.

    Args:
        bundle: The bundle.
        source: The path of the model that was split.
        path: The file to write. If the name ends in .json, only the page's data is written.

    Raises:
        OnnxFoldError: The path is invalid, the file cannot be written, or a model cannot be read.
    """
    check_destination(path, source)
    manifest = bundle.manifest
    model = storage.load(source)
    names, _, _ = weights_as_inputs(model, [info.name for info in manifest.runtime_constants])
    constants = select_runtime_constants(model, names)
    models = {"original": model, "entry": storage.load(bundle.entry)}
    original = Skeleton(model, "original", constants)
    parts = [Skeleton(models["entry"], "entry: each time")]
    if manifest.groups:
        fold = storage.load(bundle.runtime_fold)
        models["runtime_fold"] = fold
        parts.insert(0, Skeleton(fold, "runtime_fold: once", fold.graph.inputs))
    bytes_of = {part: storage.model_bytes(part_model) for part, part_model in models.items()}
    reasons = {(stay.node, stay.op): stay.reason for stay in manifest.stays}
    runs = {part.name_of(node): part.title for part in parts for node in part.nodes}
    for node in original.nodes:
        name = original.name_of(node)
        if name not in runs:
            node["gone"] = True
        node["decision"] = runs.get(name, "in neither part: folded, rewritten, or not on this page")
        reason = reasons.get((node["name"] or name, node["op"]))
        if reason:
            node["why"] = short(reason)
    document = {
        "split": {**manifest.to_dict(), "bytes": bytes_of, "cached_bytes": manifest.cached_bytes},
        "graphs": [skeleton.to_dict() for skeleton in (original, *parts)],
    }
    write_page(path, "split", os.fspath(source), str(bundle.folder), document)


def check_destination(path: PathLike, *other_files: PathLike) -> None:
    """Check before a run that the page of the run can be written.

    Args:
        path: The file of the page.
        other_files: The other files of the run, which the page must not replace.

    Raises:
        UsageError: The name does not end in .html or .json, the path is one of ``other_files``, or
            the folder is missing or read-only.
    """
    name = os.fspath(path)
    if not name.lower().endswith((".html", ".json")):  # a typo must not replace a model
        raise UsageError("the report's name must end in .html or .json", file=name)
    real = real_target(name)
    if not os.access(os.path.dirname(real), os.W_OK):
        raise UsageError("cannot be written: its folder is read-only", file=name)
    for other_file in other_files:
        if real == os.path.realpath(other_file):
            reason = "the report would replace a model of this run; give another name"
            raise UsageError(reason, file=name)


def write_page(
    path: PathLike, kind: str, source: str, target: str, document: Mapping[str, Any]
) -> None:
    """Write the report page of a command.

    Args:
        path: The file to write: only the data if the name ends in .json, otherwise an HTML page.
        kind: The command: "optimize", "compare" or "split".
        source: The file that the command read, or "" for a model in memory.
        target: The other file or the bundle of the command.
        document: The JSON-ready data of the page, without the keys that all pages have.

    Raises:
        OnnxFoldError: The file cannot be written.
    """
    name = os.fspath(path)
    head = {"format": _FORMAT, "kind": kind, "source": source, "target": target}
    data = {**head, "onnxfold": onnxfold.__version__, **document}
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    if not name.lower().endswith(".json"):
        text = _html_of(text)
    try:
        with replacing(os.path.realpath(name)) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise os_error(error, name) from error


def _html_of(data: str) -> str:
    # In a script element, only these characters can end the data or start a comment.
    escaped = data.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    parts = _asset("page.html").split("%%")  # every second part is the name of an asset
    parts[1::2] = (escaped if name == "DATA" else _asset(name) for name in parts[1::2])
    return "".join(parts)


def _asset(name: str) -> str:
    file = resources.files("onnxfold.tools.report.page") / "assets" / name
    return file.read_text(encoding="utf-8")


class Recording:
    """An `onnxfold.passes.context.Observer` that records a run for the page of the run.

    The recording also observes the pool of constants. It keeps the names and types of the original
    model, but references a node only until a pass removes the node.
    """

    def __init__(self, model: ir.Model, options: Options) -> None:
        self._options = options
        self._start = time.perf_counter()
        self._live = 0
        self._peak_live = 0
        self._all_results = 0
        self._events = array("d")
        """For each change: seconds, live bytes, and bytes if nothing had been freed so far."""
        self._begin(model)

    def _begin(self, model: ir.Model) -> None:
        self._model = model
        self._before = Skeleton(model, "before")
        self._tensors = _largest(model)
        self._remaining = self._before.forget_model()
        """Nodes that no pass has removed, by their index in the skeleton."""
        self._removed_by: dict[int, str] = {}
        """The passes that removed the other nodes, by their index in the skeleton."""
        self._results: set[str] = set()

    # ---------------------------------------------------------------- during the run

    def holds(self, nbytes: int) -> None:
        """Record the live bytes of the pool."""
        self._live = nbytes
        self._peak_live = max(self._peak_live, nbytes)
        # Without freeing, buffers that are not results of nodes would also remain in memory.
        unfreed = max(self._peak_live, self._all_results)
        self._events.extend((time.perf_counter() - self._start, nbytes, unfreed))

    def bound(self, value: ir.Value, buffer: Buffer) -> None:
        """Record the size of a computed constant. Each name counts once; weights do not count."""
        name = value.name
        if not name or storage.stored_tensor(value) is not None or name in self._results:
            return
        self._results.add(name)
        self._all_results += buffer.nbytes
        self.holds(self._live)

    def passed(self, name: str, model: ir.Model) -> None:
        """Record the nodes that a pass has removed. If the run has restarted, begin again."""
        if model is not self._model:  # the run has restarted at a lower level
            self._begin(model)
        removed = [index for index, node in self._remaining.items() if node.graph is None]
        for index in removed:
            del self._remaining[index]
            self._removed_by[index] = name

    # ---------------------------------------------------------------- after the run

    def document(self, report: Report, model: ir.Model) -> dict[str, Any]:
        """Return the JSON-ready data of the page.

        Args:
            report: The report of the run.
            model: The optimized model.
        """
        decisions = {short(d.value or d.node): d for d in report.decisions}
        after = Skeleton(model, "after")
        for entry, node in zip(after.nodes, after.drawn, strict=True):
            decision = decisions.get(after.name_of(entry))
            if decision is not None and not decision.folded:
                _add_decision(entry, decision)
            rules = node.metadata_props.get(RULE_KEY)
            if rules is not None:
                entry["rules"] = [short(name) for name in rules.split(", ")]
                entry["from"] = short(node.metadata_props.get(FROM_KEY, ""))
        self._describe_original(report, decisions, after)
        return {
            "run": _run_of(report),
            "rules": self._applied_rules(report),
            "memory": {
                "columns": ["seconds", "live bytes", "bytes if nothing were freed so far"],
                "points": self._memory_points(),
            },
            "tensors": {"before": self._tensors, "after": _largest(model)},
            "graphs": [self._before.to_dict(), after.to_dict()],
        }

    def _describe_original(
        self, report: Report, decisions: Mapping[str, Decision], after: Skeleton
    ) -> None:
        """Add to each original node its decision, its rules and the pass that removed the node."""
        rules: dict[str, dict[str, None]] = {}
        for rule, values in report.places.items():
            for value in values:
                rules.setdefault(short(value), {})[rule] = None
        passes = all_passes()
        results_after = {value[0] for value in after.values if value[2] == "result"}
        for index, entry in enumerate(self._before.nodes):
            name = self._before.name_of(entry)
            decision = decisions.get(name)
            if decision is not None:
                _add_decision(entry, decision)
            if name in rules:
                entry["rules"] = list(rules[name])
            removed_by = self._removed_by.get(index)
            if removed_by is None:
                continue
            entry |= {"gone": True, "by": removed_by}
            if removed_by != _FOLDING:
                is_computed = name in results_after
                entry["decision"] = "computed by another node" if is_computed else "removed"
                entry.pop("why", None)
                if removed_by in passes:
                    entry["why"] = f"{removed_by}: {passes[removed_by].doc}"
            elif decision is None:
                entry["decision"] = "folded"
                entry["why"] = "its result is small, or its branch was chosen"

    def _applied_rules(self, report: Report) -> list[dict[str, Any]]:
        docs = {rule.name: rule.doc for rules in self._options.rule_sets() for rule in rules}
        return [
            {
                "name": name,
                "doc": docs.get(name, ""),
                "count": count,
                "inexact": report.inexact.get(name, 0),
                "places": list(map(short, report.places.get(name, ())[:_MAX_PLACES])),
                "left_out": max(0, count - _MAX_PLACES),
            }
            for name, count in report.rewrites.items()
        ]

    def _memory_points(self) -> list[tuple[float, int, int]]:
        """Return the points of the memory chart.

        If there are more than `_MAX_POINTS` changes, a point has the peak of a group of changes.
        """
        events = np.array(self._events).reshape(-1, 3)
        size = -(-len(events) // _MAX_POINTS) or 1
        groups = (events[k : k + size] for k in range(0, len(events), size))
        return [(round(g[-1, 0], 4), int(g[:, 1].max()), int(g[-1, 2])) for g in groups]


def _run_of(report: Report) -> dict[str, Any]:
    """Return the report as a dictionary for the page, with truncated lists.

    Decisions about folded nodes and places are omitted, because the nodes and the rules of the page
    have them.
    """
    run = report.to_dict()
    del run["decisions"], run["places"]
    keys = ("value", "op_type", "graph", "reason")
    run["kept"] = [{k: short(str(node[k])) for k in keys} for node in run["kept"][:_MAX_KEPT]]
    run["kept_left_out"] = max(0, len(report.kept) - _MAX_KEPT)
    rounded = [[short(value), short(reason)] for value, reason in report.rounded.items()]
    run["rounded"] = rounded[:_MAX_ROUNDED]
    run["rounded_left_out"] = len(rounded[_MAX_ROUNDED:])
    return run


def _add_decision(node: dict[str, Any], decision: Decision) -> None:
    node["decision"] = "folded" if decision.folded else "kept"
    node["why"] = short(decision.reason)
    sizes = {key: getattr(decision, key) for key in ("bytes_if_folded", "bytes_if_kept")}
    node.update((key, size) for key, size in sizes.items() if size is not None)


def _largest(model: ir.Model) -> dict[str, Any]:
    """Return the number and the total bytes of a model's tensors, and the largest tensors."""
    tensors = largest_first(model)
    return {
        "count": len(tensors),
        "bytes": sum(tensor.bytes for tensor in tensors),
        "largest": [
            {"name": short(tensor.name), "type": short(tensor.type), "bytes": tensor.bytes}
            for tensor in tensors[:_MAX_TENSORS]
        ],
    }
