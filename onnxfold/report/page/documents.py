"""The data of a page, JSON-ready: what is shown of a comparison or a split."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnxfold
from onnxfold import storage
from onnxfold.analysis.constness import select_runtime_constants
from onnxfold.graphs import count_nodes
from onnxfold.report.page.render import check_destination, write_page
from onnxfold.report.page.skeleton import Skeleton, short
from onnxfold.runtime.splitting.weights import weights_as_inputs

if TYPE_CHECKING:
    from onnxfold.comparison import Comparison
    from onnxfold.runtime.bundles.bundle import Bundle

_FORMAT = 1

PathLike = str | os.PathLike[str]


def write_compare_page(comparison: Comparison, path: PathLike) -> None:
    """Write the page of a comparison of two files: what they compute, and both graphs.

    Args:
        comparison: What `onnxfold.compare` returned.
        path: Where the page goes; its data alone, if the name ends in .json.

    Raises:
        OnnxFoldError: It cannot be written, or one of the models cannot be read.
    """
    check_destination(path, comparison.a, comparison.b)
    models = [storage.load(path) for path in (comparison.a, comparison.b)]
    skeletons = [Skeleton(model, title) for model, title in zip(models, "ab", strict=True)]
    _mark_missing(*skeletons)
    before, after = (dict(sorted(count_nodes(model).items())) for model in models)
    document = {
        **head("compare", comparison.a, comparison.b),
        "run": {
            "nodes_before": before,
            "nodes_after": after,
            "bytes_before": storage.model_bytes(models[0]),
            "bytes_after": storage.model_bytes(models[1]),
            "check": comparison.to_dict(),
        },
        "graphs": [skeleton.to_dict() for skeleton in skeletons],
    }
    write_page(document, path)


def write_split_page(bundle: Bundle, source: PathLike, path: PathLike) -> None:
    """Write the page of a bundle: what runs once, what runs each time, and what is cached.

    Args:
        bundle: What `onnxfold.split` returned.
        source: The model that it was made of.
        path: As for `write_compare_page`.

    Raises:
        OnnxFoldError: It cannot be written, or a model cannot be read.
    """
    check_destination(path, source)
    manifest = bundle.manifest
    model = storage.load(source)
    opened = weights_as_inputs(model, [info.name for info in manifest.runtime_constants])
    constants = select_runtime_constants(model, opened.names)
    models = {"original": model, "entry": storage.load(bundle.entry)}
    whole = Skeleton(model, "original", constants)
    parts = [Skeleton(models["entry"], "entry: each time")]
    if manifest.groups:
        fold = models["runtime_fold"] = storage.load(bundle.runtime_fold)
        parts.insert(0, Skeleton(fold, "runtime_fold: once", fold.graph.inputs))
    bytes_of = {part: storage.model_bytes(each) for part, each in models.items()}
    _place(whole, parts, {(stay.node, stay.op): stay.reason for stay in manifest.stays})
    document = {
        **head("split", os.fspath(source), str(bundle.folder)),
        "split": {**manifest.to_dict(), "bytes": bytes_of, "cached_bytes": manifest.cached_bytes},
        "graphs": [skeleton.to_dict() for skeleton in (whole, *parts)],
    }
    write_page(document, path)


def head(kind: str, source: str, target: str) -> dict[str, Any]:
    """Return what every page begins with: its format, the command, and the files."""
    return {
        "format": _FORMAT,
        "kind": kind,
        "source": source,
        "target": target,
        "onnxfold": onnxfold.__version__,
    }


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
