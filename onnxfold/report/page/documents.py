"""Write JSON-ready documents as self-contained pages; make those of a comparison and a split."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import onnxfold
from onnxfold import storage
from onnxfold.analysis.constness import select_runtime_constants
from onnxfold.errors import UsageError
from onnxfold.files import os_error, replacing
from onnxfold.graphs import count_nodes
from onnxfold.report.page.skeleton import Skeleton, short
from onnxfold.runtime.splitting.weights import weights_as_inputs
from onnxfold.storage import PathLike
from onnxfold.storage.save import real_target

if TYPE_CHECKING:
    from onnxfold.comparison import Comparison
    from onnxfold.runtime.bundles.bundle import Bundle

_FORMAT = 1


def write_compare_page(comparison: Comparison, path: PathLike) -> None:
    """Write the page of a comparison of two files, with both graphs.

    Args:
        comparison: The result of `onnxfold.compare`.
        path: The file of the page; the data only, if the name ends in .json.

    Raises:
        OnnxFoldError: The file cannot be written, or a model cannot be read.
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
    """Write the page of a bundle: nodes that run once or each time, and cached tensors.

    Args:
        bundle: The result of `onnxfold.split`.
        source: The model that was split.
        path: As for `write_compare_page`.

    Raises:
        OnnxFoldError: The file cannot be written, or a model cannot be read.
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
    """Return the common head of all pages: format, command, and files."""
    return {
        "format": _FORMAT,
        "kind": kind,
        "source": source,
        "target": target,
        "onnxfold": onnxfold.__version__,
    }


def _mark_missing(a: Skeleton, b: Skeleton) -> None:
    """Mark nodes whose name no value of the other model has."""
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
    """Mark the nodes of the original with the part that runs them."""
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


def check_destination(path: PathLike, *others: PathLike) -> None:
    """Check that a page can be written before the run starts.

    Args:
        path: The file of the page.
        others: Files of the same run, which must not be replaced.

    Raises:
        UsageError: The name does not end in .html or .json, the path is no file or one of
            ``others``, or its folder is missing or read-only.
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


def write_page(document: dict[str, Any], path: PathLike) -> None:
    """Write a document: as JSON if the file's name ends in .json, otherwise as a page.

    Raises:
        OnnxFoldError: The file cannot be written.
    """
    name = os.fspath(path)
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
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


@cache
def _asset(name: str) -> str:
    file = resources.files("onnxfold.report.page") / "assets" / name
    return file.read_text(encoding="utf-8")
