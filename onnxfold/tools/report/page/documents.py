"""Write JSON-ready documents as pages, with the templates and libraries of ``assets/``."""

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

_FORMAT = 1
_FOLDING = "constant-propagation"
_MOST_PLACES = 100  # per rule
_MOST_KEPT = 500
_MOST_ROUNDED = 100
_MOST_POINTS = 1000
_MOST_TENSORS = 40


def write_compare_page(comparison: Comparison, path: PathLike) -> None:
    """Write the page of a comparison of two files, with both graphs; only its data, if the name of
    the file ends in .json. An OnnxFoldError says that it cannot be written, or a model cannot be
    read.
    """
    check_destination(path, comparison.a, comparison.b)
    models = [storage.load(path) for path in (comparison.a, comparison.b)]
    skeletons = [Skeleton(model, title) for model, title in zip(models, "ab", strict=True)]
    for one, other in (skeletons, skeletons[::-1]):
        names = {entry[0] for entry in other.values}
        is_whole = len(other.nodes) == other.total
        for node in one.nodes:
            if is_whole and one.name_of(node) not in names:
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
    """Write the page of a bundle and the model that was split: nodes that run once or each time,
    and cached tensors. The path and errors are as for `write_compare_page`.
    """
    check_destination(path, source)
    manifest = bundle.manifest
    model = storage.load(source)
    names, _, _ = weights_as_inputs(model, [info.name for info in manifest.runtime_constants])
    constants = select_runtime_constants(model, names)
    models = {"original": model, "entry": storage.load(bundle.entry)}
    whole = Skeleton(model, "original", constants)
    parts = [Skeleton(models["entry"], "entry: each time")]
    if manifest.groups:
        fold = storage.load(bundle.runtime_fold)
        models["runtime_fold"] = fold
        parts.insert(0, Skeleton(fold, "runtime_fold: once", fold.graph.inputs))
    bytes_of = {part: storage.model_bytes(each) for part, each in models.items()}
    reasons = {(stay.node, stay.op): stay.reason for stay in manifest.stays}
    runs = {part.name_of(node): part.title for part in parts for node in part.nodes}
    for node in whole.nodes:
        name = whole.name_of(node)
        if name not in runs:
            node["gone"] = True
        node["decision"] = runs.get(name, "in neither part: folded, rewritten, or left out")
        if reason := reasons.get((node["name"] or name, node["op"])):
            node["why"] = short(reason)
    document = {
        "split": {**manifest.to_dict(), "bytes": bytes_of, "cached_bytes": manifest.cached_bytes},
        "graphs": [skeleton.to_dict() for skeleton in (whole, *parts)],
    }
    write_page(path, "split", os.fspath(source), str(bundle.folder), document)


def check_destination(path: PathLike, *others: PathLike) -> None:
    """Check before a run that its page can be written: raise a UsageError if the name does not end
    in .html or .json, the path is one of ``others`` (files of the run), or its folder is missing or
    read-only.
    """
    name = os.fspath(path)
    if not name.lower().endswith((".html", ".json")):  # a wrong argument must not overwrite a model
        raise UsageError("the report's name must end in .html or .json", file=name)
    real = real_target(name)
    if not os.access(os.path.dirname(real), os.W_OK):
        raise UsageError("cannot be written: its folder is read-only", file=name)
    for other in others:
        if real == os.path.realpath(other):
            raise UsageError("the report would replace a model of this run", file=name)


def write_page(
    path: PathLike, kind: str, source: str, target: str, document: Mapping[str, Any]
) -> None:
    """Write a document of a command with its files: as JSON if the file's name ends in .json,
    otherwise as a page.
    """
    name = os.fspath(path)
    head = {"format": _FORMAT, "kind": kind, "source": source, "target": target}
    made = {**head, "onnxfold": onnxfold.__version__, **document}
    text = json.dumps(made, allow_nan=False, separators=(",", ":"))
    if not name.lower().endswith(".json"):
        # In a script element only these characters could end the data or start a comment.
        data = text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
        pieces = _asset("page.html").split("%%")  # every second part is a name
        pieces[1::2] = (data if each == "DATA" else _asset(each) for each in pieces[1::2])
        text = "".join(pieces)
    try:
        with replacing(os.path.realpath(name)) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise os_error(error, name) from error


def _asset(name: str) -> str:
    file = resources.files("onnxfold.tools.report.page") / "assets" / name
    return file.read_text(encoding="utf-8")


class Recording:
    """Records a run for its page; an `onnxfold.passes.context.Observer`. Of the original model,
    names and types are kept; nodes are referenced only until a pass removes them.
    """

    def __init__(self, model: ir.Model, options: Options) -> None:
        self._options = options
        self._start = time.perf_counter()
        self._live = 0
        self._most_live = 0
        self._all_results = 0
        self._events = array("d")
        """Seconds, live bytes, and bytes if nothing were freed so far, for each change."""
        self._begin(model)

    def _begin(self, model: ir.Model) -> None:
        self._model = model
        self._before = Skeleton(model, "before")
        self._tensors = _largest(model)
        self._left = self._before.forget_model()
        """Remaining nodes by their index in the skeleton."""
        self._gone_by: dict[int, str] = {}
        self._results: set[str] = set()

    # ---------------------------------------------------------------- while it runs

    def holds(self, nbytes: int) -> None:
        """Record the live bytes of the pool."""
        self._live = nbytes
        self._most_live = max(self._most_live, nbytes)
        # buffers that are no results of nodes would have to be held, too
        unfreed = max(self._most_live, self._all_results)
        self._events.extend((time.perf_counter() - self._start, nbytes, unfreed))

    def bound(self, value: ir.Value, buffer: Buffer) -> None:
        """Record the size of a constant; each result of a node counts once."""
        name = value.name
        if not name or storage.stored_tensor(value) is not None or name in self._results:
            return
        self._results.add(name)
        self._all_results += buffer.nbytes
        self.holds(self._live)

    def passed(self, name: str, model: ir.Model) -> None:
        """Record the nodes that a pass has removed."""
        if model is not self._model:  # the run starts again with fewer rules
            self._begin(model)
        gone = [index for index, node in self._left.items() if node.graph is None]
        for index in gone:
            del self._left[index]
            self._gone_by[index] = name

    # ---------------------------------------------------------------- afterwards

    def document(self, report: Report, model: ir.Model) -> dict[str, Any]:
        """Return the JSON-ready data of the page, given the report and the optimized model."""
        decided = {short(d.value or d.node): d for d in report.decisions}
        rules: dict[str, dict[str, None]] = {}
        for rule, values in report.places.items():
            for value in values:
                rules.setdefault(short(value), {})[rule] = None
        after = Skeleton(model, "after")
        for node, made in zip(after.nodes, after.drawn, strict=True):
            decision = decided.get(after.name_of(node))
            if decision is not None and not decision.folded:
                _decide(node, decision)
            if RULE_KEY in made.metadata_props:
                node["rules"] = [short(name) for name in made.metadata_props[RULE_KEY].split(", ")]
                node["from"] = short(made.metadata_props.get(FROM_KEY, ""))
        events = np.array(self._events).reshape(-1, 3)  # of many, groups become their maximum
        some = -(-len(events) // _MOST_POINTS) or 1
        parts = (events[k : k + some] for k in range(0, len(events), some))
        # decisions and places are stored with nodes and rules
        run = report.to_dict()
        del run["decisions"], run["places"]
        keys = ("value", "op_type", "graph", "reason")
        run["kept"] = [{k: short(str(n[k])) for k in keys} for n in run["kept"][:_MOST_KEPT]]
        run["kept_left_out"] = max(0, len(report.kept) - _MOST_KEPT)
        rounded = [[short(value), short(why)] for value, why in report.rounded.items()]
        run["rounded"] = rounded[:_MOST_ROUNDED]
        run["rounded_left_out"] = len(rounded[_MOST_ROUNDED:])
        docs = {rule.name: rule.doc for rules in self._options.rule_sets() for rule in rules}
        passes = all_passes()
        made_still = {value[0] for value in after.values if value[2] == "result"}
        for index, node in enumerate(self._before.nodes):
            name = self._before.name_of(node)
            decision = decided.get(name)
            if decision is not None:
                _decide(node, decision)
            if name in rules:
                node["rules"] = list(rules[name])
            by = self._gone_by.get(index)
            if by is not None:
                node |= {"gone": True, "by": by}
            if by == _FOLDING and decision is None:
                node["decision"] = "folded"
                node["why"] = "its result is small, or its branch was chosen"
            elif by is not None and by != _FOLDING:
                node["decision"] = "computed by another node" if name in made_still else "removed"
                node.pop("why", None)
                if by in passes:
                    node["why"] = f"what {by} does: {passes[by].doc}"
        return {
            "run": run,
            "rules": [
                {
                    "name": name,
                    "doc": docs.get(name, ""),
                    "count": count,
                    "inexact": report.inexact.get(name, 0),
                    "places": list(map(short, report.places.get(name, ())[:_MOST_PLACES])),
                    "left_out": max(0, count - _MOST_PLACES),
                }
                for name, count in report.rewrites.items()
            ],
            "memory": {
                "columns": ["seconds", "live bytes", "bytes if nothing were freed so far"],
                "points": [(round(p[-1, 0], 4), int(p[:, 1].max()), int(p[-1, 2])) for p in parts],
            },
            "tensors": {"before": self._tensors, "after": _largest(model)},
            "graphs": [self._before.to_dict(), after.to_dict()],
        }


def _decide(node: dict[str, Any], decision: Decision) -> None:
    node["decision"] = "folded" if decision.folded else "stays"
    node["why"] = short(decision.reason)
    sizes = {key: getattr(decision, key) for key in ("bytes_if_folded", "bytes_if_kept")}
    node.update((key, size) for key, size in sizes.items() if size is not None)


def _largest(model: ir.Model) -> dict[str, Any]:
    """Return the number of tensors in a model, their bytes, and the largest ones."""
    tensors = largest_first(model)
    return {
        "count": len(tensors),
        "bytes": sum(tensor.bytes for tensor in tensors),
        "largest": [
            {"name": short(tensor.name), "type": short(tensor.type), "bytes": tensor.bytes}
            for tensor in tensors[:_MOST_TENSORS]
        ],
    }
