"""The data of a page, JSON-ready: what is shown of an optimization, a comparison, or a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

import onnxfold
from onnxfold import storage
from onnxfold.analysis.constness import select_runtime_constants
from onnxfold.graphs import count_nodes
from onnxfold.report.page.skeleton import Skeleton, short, skeleton_of
from onnxfold.runtime.splitting.weights import weights_as_inputs

if TYPE_CHECKING:
    from onnxfold.compare import Comparison
    from onnxfold.options import Options
    from onnxfold.report.page.recording import Recording
    from onnxfold.report.summary import Report
    from onnxfold.runtime.bundles.bundle import Bundle

_FORMAT = 1
_MOST_PLACES = 100  # of one rule
_MOST_KEPT = 500
_MOST_ROUNDINGS = 100


def optimize_document(
    report: Report, recording: Recording, model: ir.Model, options: Options
) -> dict[str, Any]:
    """What a run of the optimizer did.

    Args:
        report: Of the run.
        recording: What was noted of it.
        model: As it is now.
        options: Of the run.
    """
    found = recording.document(model, report.decisions, report.places)
    # decisions are with the nodes of the graph, places with the rules
    told = replace(report, decisions=[], places={}).to_dict()
    del told["decisions"], told["places"]
    told["kept_left_out"] = max(0, len(told["kept"]) - _MOST_KEPT)
    told["kept"] = [
        {key: short(text) for key, text in kept.items()} for kept in told["kept"][:_MOST_KEPT]
    ]
    apart = [rounding for rounding in told["roundings"] if rounding["differing"]]
    told["measured"] = len(told["roundings"])
    told["roundings"] = [{**r, "tensor": short(r["tensor"])} for r in apart[:_MOST_ROUNDINGS]]
    told["roundings_left_out"] = len(apart) - len(told["roundings"])
    rounded = [[short(value), short(why)] for value, why in told["rounded"].items()]
    told["rounded"] = rounded[:_MOST_ROUNDINGS]
    told["rounded_left_out"] = len(rounded) - len(told["rounded"])
    return {
        **_head("optimize", report.source or "", report.target or ""),
        "run": told,
        "rules": _rules(report, report.places, options),
        **found,
    }


def compare_document(comparison: Comparison) -> dict[str, Any]:
    """What two models make of the same inputs, and both graphs.

    Args:
        comparison: Of two models in files.
    """
    models = [storage.load(path) for path in (comparison.a, comparison.b)]
    skeletons = [skeleton_of(m, title) for m, title in zip(models, "ab", strict=True)]
    _mark_missing(*skeletons)
    before, after = (dict(sorted(count_nodes(model).items())) for model in models)
    return {
        **_head("compare", comparison.a, comparison.b),
        "run": {
            "nodes_before": before,
            "nodes_after": after,
            "bytes_before": storage.model_bytes(models[0]),
            "bytes_after": storage.model_bytes(models[1]),
            "check": comparison.to_dict(),
        },
        "graphs": [skeleton.to_dict() for skeleton in skeletons],
    }


def split_document(bundle: Bundle, source: str) -> dict[str, Any]:
    """What a bundle runs once, what it runs each time, and what is cached in between.

    Args:
        bundle: The bundle.
        source: The file that it was made of.
    """
    manifest = bundle.manifest
    model = storage.load(source)
    opened = weights_as_inputs(model, [info.name for info in manifest.runtime_constants])
    constants = select_runtime_constants(model, opened.names)
    whole = skeleton_of(model, "original", constants)
    entry_model = storage.load(bundle.entry)
    entry = skeleton_of(entry_model, "entry: each time")
    parts = [entry]
    bytes_of = {
        "original": storage.model_bytes(model),
        "entry": storage.model_bytes(entry_model),
    }
    if manifest.groups:
        fold_model = storage.load(bundle.runtime_fold)
        fold = skeleton_of(fold_model, "runtime_fold: once", fold_model.graph.inputs)
        bytes_of["runtime_fold"] = storage.model_bytes(fold_model)
        parts.insert(0, fold)
    _place(whole, parts, {(stay.node, stay.op): stay.reason for stay in manifest.stays})
    return {
        **_head("split", source, str(bundle.folder)),
        "split": {**manifest.to_dict(), "bytes": bytes_of, "cached_bytes": manifest.cached_bytes},
        "graphs": [skeleton.to_dict() for skeleton in (whole, *parts)],
    }


def _head(kind: str, source: str, target: str) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "kind": kind,
        "source": source,
        "target": target,
        "onnxfold": onnxfold.__version__,
    }


def _rules(
    report: Report, places: Mapping[str, Sequence[str]], options: Options
) -> list[dict[str, Any]]:
    docs = {rule.name: rule.doc for rules in options.rule_sets() for rule in rules}
    return [
        {
            "name": name,
            "doc": docs.get(name, ""),
            "count": count,
            "inexact": report.inexact.get(name, 0),
            "places": [short(place) for place in places.get(name, ())[:_MOST_PLACES]],
            "left_out": max(0, count - _MOST_PLACES),
        }
        for name, count in report.rewrites.items()
    ]


def _mark_missing(a: Skeleton, b: Skeleton) -> None:
    """Say of nodes that the other model has no value of this name."""
    for one, other in ((a, b), (b, a)):
        names = {entry[0] for entry in other.values}
        is_whole = len(other.nodes) == other.total
        for node in one.nodes:
            if is_whole and one.name_of(node) not in names:
                node["gone"] = True
                node["decision"] = f"no value of this name in {other.title}"


def _place(
    whole: Skeleton, parts: Sequence[Skeleton], reasons: Mapping[tuple[str, str], str]
) -> None:
    """Say of the original's nodes which part runs them."""
    runs = {part.name_of(node): part for part in parts for node in part.nodes}
    for node in whole.nodes:
        name = whole.name_of(node)
        part = runs.get(name)
        if part is None:
            node["gone"] = True
            node["decision"] = "in neither part: folded, rewritten, or left out"
        else:
            node["decision"] = part.title
        reason = reasons.get((node["name"] or name, node["op"]))
        if reason:
            node["why"] = short(reason)
