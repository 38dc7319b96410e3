"""Cache optimized models in the user's cache folder.

The cache folder contains entries and links. An entry is a folder with an optimized model, or with a
bundle of `onnxfold.runtime.kept_bundles`. The name of an entry with a model is a hash of the
content of the source, the options and the versions. A link is a file that contains the name of the
entry of a source.

A link describes the files of the source, and a record in an entry describes the files of the entry.
A description contains the status of each file (device, inode, size, times) and a hash of the
content. The content is read again only if a status differs, or if a source file was changed within
seconds before its description. A later start therefore reads a link and a record, compares the
statuses of a few files, and opens the cached model.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

import onnxfold
from onnxfold.api.options import OptionArguments
from onnxfold.support import files
from onnxfold.support.errors import ModelError, OnnxFoldError
from onnxfold.support.file_contents import Status, describe, recorded, statuses, write_record
from onnxfold.support.onnxruntime_sessions import (
    DECIDING,
    entries_of,
    open_session,
    provides_data,
    provides_initializers,
    write_optimized,
)
from onnxfold.support.system import cpu_features
from onnxfold.support.user_caches import bytes_allowed, make_folder, put, touch, user_folder

if TYPE_CHECKING:
    import onnx_ir as ir

logger = logging.getLogger("onnxfold")

LIMIT = "ONNXFOLD_SESSION_CACHE_BYTES"
"""Environment variable with the maximum size of the cache in bytes. 0 disables the cache."""

DEFAULT_LIMIT = 4 << 30
"""Default maximum size of the cache in bytes."""

FORMAT = 3
"""Version of the format of entries and links."""

RECORD = "record.json"
"""The file of an entry that describes the other files of the entry."""

_MODEL = "model.onnx"
_WEIGHTS = "weights"

_NAMES = "names.json"
"""The file with the names of the source's values.

Session options may provide initializers for these values.
"""

_INPUTS = "inputs.json"
"""The file with the sets of inputs that are worth holding constant, and the share of each set."""

_OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL

_CPU = frozenset(("CPUExecutionProvider", "AzureExecutionProvider"))
"""Providers for which onnxruntime's optimized model has no compiled nodes."""

FOREIGN = (
    "session.load_model_format",
    "session.model_external_initializers_file_folder_path",
    "session.save_model_format",
    "session.node_partition_config_file",
    "session.compile_only",
    "session.strict_shape_type_inference",
    "session.moe.offload.mode",
    "session.moe.offload.source_root",
    "session.layer_assignment_settings",
    "session.name_based_layer_assignment",
    "ep.context_enable",
    "ep.enable_weightless",
    "ep.enable_weightless_mode",
    "ep.enable_weightless_ep_context_nodes",
)
"""Entries of session options that read or write other files, or depend on the original nodes.

If one of these entries has a value, the session opens the original model.
"""

Provider = str | tuple[str, dict[Any, Any]]


def is_unsupported(
    source: Any, options: ort.SessionOptions | None, keywords: Collection[str]
) -> bool:
    """Return whether a session with these arguments must open the original model.

    The environment variables `LIMIT` and ``ORT_LOAD_CONFIG_FROM_MODEL`` can also require this.

    Args:
        source: The path or the bytes of a model. For any other object, the result is True.
        options: The session options of onnxruntime.
        keywords: The names of further arguments of ``onnxruntime.InferenceSession``.
    """
    if not isinstance(source, (str, bytes, os.PathLike)) or set(keywords) - {"enable_fallback"}:
        return True
    if bytes_allowed(LIMIT, DEFAULT_LIMIT) == 0 or os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL"):
        return True
    if not isinstance(source, bytes) and os.fspath(source).endswith(".ort"):
        return True
    if options is None:
        return False
    if options.optimized_model_filepath or any(entries_of(options, FOREIGN).values()):
        return True
    return provides_data(options)


def replaces_values(options: ort.SessionOptions | None, kept: KeptModel) -> bool:
    """Return whether session options provide an initializer for a value of the original model.

    The result is also True if the names of the values cannot be read from the cache.
    """
    if options is None:
        return False
    try:
        names = json.loads(Path(str(kept.model)).with_name(_NAMES).read_bytes())
    except (OSError, ValueError) as error:  # the entry was just removed, or is damaged
        logger.debug("%s: %s", kept.model, error)
        return True
    return provides_initializers(options, names)


@dataclass(frozen=True)
class KeptModel:
    """An entry of the cache for a source, and the link to the entry.

    Attributes:
        link: The path of the link.
        entry: The folder of the entry.
        model: The path of the optimized model. None if onnxfold rejects the source, or if the
            optimized model is larger than the cache.
        is_finished: Whether onnxruntime also optimized the model.
        source_files: The statuses of the files of the source, by path. Empty for bytes.
        files: The statuses of the files of the entry, by name.
    """

    link: Path
    entry: Path
    model: str | None
    is_finished: bool
    source_files: Mapping[str, Status]
    files: Mapping[str, Status]


def kept_model(
    source: str | bytes | os.PathLike[str],
    options: ort.SessionOptions | None,
    providers: Sequence[Provider] | None,
    fold: OptionArguments,
) -> KeptModel | None:
    """Return the cached model of a source. If there is none, optimize the source and cache it.

    Args:
        source: The path or the bytes of a model.
        options: The session options of onnxruntime.
        providers: Execution providers, as onnxruntime takes them.
        fold: The optimization options.

    Returns:
        The entry of the cache. None if the source cannot be read or is larger than the cache, or if
        another process has just removed the entry. An entry has no model if onnxfold rejects the
        source, or if the optimized model is larger than the cache.

    Raises:
        OnnxFoldError: The source cannot be optimized or was changed while it was read, or the cache
            folder cannot be created.
        OSError: The cache folder cannot be written.
    """
    optimizer = _optimizer_options(options, providers)
    key = [FORMAT, onnxfold.__version__, ort.__version__, ort.get_build_info(), *fold.items()]
    if optimizer is not None:
        key += [cpu_features(), optimizer.graph_optimization_level, entries_of(optimizer, DECIDING)]
    if isinstance(source, bytes):
        name = hashlib.sha256(source).hexdigest()
    else:
        name = os.path.abspath(os.fsdecode(os.fspath(source)))
        source = name
    link = user_folder("sessions") / f"{hash_of(key, name)}.json"
    known = linked_model(link)
    if known is not None:
        return known
    from onnxfold.ir.storage.load import external_files

    cache = link.parent
    limit = bytes_allowed(LIMIT, DEFAULT_LIMIT)
    names = []
    try:
        if isinstance(source, str):
            names = [source, *external_files(source)]
        target = describe(cache, names)
    except (OnnxFoldError, OSError, ValueError) as error:
        logger.debug("the original model is opened, and onnxruntime reports the error: %s", error)
        return None
    if (sum(map(os.path.getsize, names)) if names else len(source)) > limit:
        return None
    target["entry"] = hash_of(key, target["digest"] if names else link.stem)
    entry = cache / target["entry"]
    make_folder(cache)
    files.remove_leftovers(str(cache))
    with files.locked(str(entry)):
        if recorded(entry / RECORD) is None:
            shutil.rmtree(entry, ignore_errors=True)
            with files.scratch_folder("session", parent=str(cache)) as new:
                finished = _write_model(source, new, fold, optimizer)
                size = sum(file.stat().st_size for file in os.scandir(new))
                for name in os.listdir(new) if size > limit else ():
                    os.remove(os.path.join(new, name))
                record = describe(Path(new), os.listdir(new))
                write_record(Path(new, RECORD), {**record, "settled": True, "finished": finished})
                if statuses(cache, names) != target["files"]:
                    raise OnnxFoldError("was changed while it was read", file=names[0])
                put(new, str(entry), limit - len(json.dumps(target)))  # leaves room for the link
    write_record(link, target)
    return linked_model(link)


def _optimizer_options(
    options: ort.SessionOptions | None, providers: Sequence[Provider] | None
) -> ort.SessionOptions | None:
    """Return the options with which onnxruntime optimizes a model for the cache.

    Returns:
        The options. None if the session options disable onnxruntime's optimization, or if its
        result cannot be cached because the session uses other providers than those in `_CPU`.
    """
    available = set(ort.get_available_providers())
    names = {p if isinstance(p, str) else p[0] for p in providers or available}
    optimizer = ort.SessionOptions()
    if options is not None:
        if options.has_providers() or options.graph_optimization_level == _OFF:
            return None
        optimizer.graph_optimization_level = options.graph_optimization_level
        for name, value in entries_of(options, DECIDING).items():
            optimizer.add_session_config_entry(name, value)
    return optimizer if names & available <= _CPU else None


def linked_model(link: Path) -> KeptModel | None:
    """Return the cached model to which a link refers.

    The result is None if the link is missing or damaged. It is also None if a file of the source or
    of the entry is missing or has changed.
    """
    target = recorded(link)
    if target is None:
        return None
    entry = link.parent / target["entry"]
    record = recorded(entry / RECORD)
    if record is None:
        return None
    touch(link)
    touch(entry)
    model = str(entry / _MODEL) if _MODEL in record["files"] else None
    return KeptModel(link, entry, model, record["finished"], target["files"], record["files"])


def _write_model(
    source: str | bytes, folder: str, fold: OptionArguments, optimizer: ort.SessionOptions | None
) -> bool:
    """Write the optimized model, the names of values and the worthwhile inputs into a folder.

    Nothing is written if onnxfold rejects the source.

    Args:
        source: The path or the bytes of a model.
        folder: An empty folder.
        fold: The optimization options.
        optimizer: The options with which onnxruntime optimizes the model. None disables this.

    Returns:
        Whether onnxruntime also optimized the model.

    Raises:
        OnnxFoldError: The source cannot be optimized.
        OSError: The folder cannot be written.
    """
    from onnxfold.api.optimize import optimize
    from onnxfold.ir import storage
    from onnxfold.runtime.bundles.in_memory import has_custom_ops
    from onnxfold.runtime.splitting.dependence import worthwhile_inputs

    try:
        original = storage.opened(source)
        if isinstance(source, bytes) and original.meta[storage.EXTERNAL_KEY]:
            raise ModelError("the folder of the data files is unknown for a model in bytes")
        names = _names_of_values(original)
        options: OptionArguments = {**fold, "disable": third_party_rule_sets()}
        model: ir.Model = optimize(original, **options)
    except ModelError as error:
        logger.info("the original model is opened: %s", error)
        return False
    path = os.path.join(folder, _MODEL)
    Path(folder, _NAMES).write_text(json.dumps(names), encoding="ascii")
    inputs = [[each.names, each.share] for each in worthwhile_inputs(model)]
    Path(folder, _INPUTS).write_text(json.dumps(inputs), encoding="ascii")
    if optimizer is not None and not has_custom_ops(model):
        with files.scratch_folder("session", parent=folder) as scratch:
            folded = os.path.join(scratch, "folded.onnx")
            optimized = os.path.join(scratch, "optimized.onnx")
            storage.save(model, folded, external_data=True, fsync=False)
            try:
                open_session(folded, write_optimized(optimizer, optimized))
                final = storage.load(optimized)
                final.model_version = model.model_version
                _save(final, path)
                del final  # unmap its files, which are removed with the folder
                optimizer.optimized_model_filepath = ""
                optimizer.graph_optimization_level = _OFF
                open_session(path, optimizer)
                return True
            except Exception as error:  # the exceptions of onnxruntime have no common base class
                logger.info("onnxruntime cannot open the model that it optimized: %s", error)
    _save(model, path)
    return False


def third_party_rule_sets() -> list[str]:
    """Return the names of the rule sets of other packages.

    These rule sets are disabled, because a later start does not compare the versions of the
    packages.
    """
    from onnxfold.rewrite.rule import available_rule_sets, builtin_rule_sets

    available = {rules.name for rules in available_rule_sets()}
    builtin = {rules.name for rules in builtin_rule_sets()}
    return sorted(available - builtin)


def inputs_worth_holding(kept: KeptModel) -> list[tuple[list[str], float]]:
    """Return the sets of inputs of a cached model that are worth holding constant.

    Each set has its share of the work, see
    `onnxfold.runtime.splitting.dependence.WorthwhileInputs`. The list is empty if the sets cannot
    be read.
    """
    try:
        document = json.loads((kept.entry / _INPUTS).read_bytes())
        return [(list(names), float(share)) for names, share in document]
    except (OSError, ValueError, TypeError) as error:  # the entry was just removed, or is damaged
        logger.debug("%s: %s", kept.entry, error)
        return []


def _names_of_values(model: ir.Model) -> list[str]:
    """Return the names of all initializers and results of nodes.

    Results are included, because onnxruntime may fold them and then treats them as initializers.
    """
    from onnxfold.ir.graphs import all_graphs

    names = set[str]()
    for graph in all_graphs(model):
        names.update(graph.initializers)
        names.update(value.name or "" for node in graph for value in node.outputs)
    return sorted(names)


def _save(model: ir.Model, path: str) -> None:
    """Write a model with its weights in a data file from which onnxruntime can map them.

    The names of weights of the main graph get a prefix, so that session options cannot refer to
    these weights. Weights that are inputs or outputs keep their names. The model is changed.
    """
    from onnxfold.ir import storage

    for value in list(model.graph.initializers.values()):
        if not value.is_graph_input() and not value.is_graph_output():
            value.name = f"onnxfold:{value.name}"
    storage.save(model, path, external_data=_WEIGHTS)


def hash_of(*parts: Any) -> str:
    """Return the SHA-256 of the ``repr`` of values in hexadecimal, for a name in the cache."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def warn(reason: str) -> None:
    """Log a warning with the reason for opening original models, once for each reason."""
    logger.warning("models are opened without optimization: %s", reason)
