"""Keep optimized models in the user's cache folder.

The cache folder holds entries, folders with an optimized model, whose name is a hash of the
source's content, the options and the versions; and links, which name the entry of a source. Both
describe files: the status (device, inode, size, times) of each, and a hash of the content. Only
where a status differs is the content read. So a later start reads a link and a record, asks for the
status of a few files, and opens the kept model.
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
"""Environment variable: the maximum size of the cache in bytes; 0 disables the cache."""

DEFAULT_LIMIT = 4 << 30

FORMAT = 3
"""Version of the format of entries and links."""

RECORD = "record.json"

_MODEL = "model.onnx"
_WEIGHTS = "weights"

_NAMES = "names.json"
"""The names of the values of the source, for which session options may provide initializers."""

_INPUTS = "inputs.json"
"""The inputs that are worth holding constant, with their shares of the work."""

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
"""Entries with which a session reads or writes other files, or refers to the original nodes. With
them, onnxruntime opens the original model."""

Provider = str | tuple[str, dict[Any, Any]]


def is_unsupported(
    source: Any, options: ort.SessionOptions | None, keywords: Collection[str]
) -> bool:
    """Return whether onnxruntime requires the original model, or reads or writes other files."""
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
    """Return whether options provide an initializer for a value of the source of a kept model."""
    if options is None:
        return False
    try:
        names = json.loads(Path(str(kept.model)).with_name(_NAMES).read_bytes())
    except (OSError, ValueError) as error:  # another process has just removed it
        logger.debug("%s: %s", kept.model, error)
        return True
    return provides_initializers(options, names)


@dataclass(frozen=True)
class KeptModel:
    """An entry of the cache.

    Attributes:
        link: The link that names the entry.
        entry: The folder of the entry.
        model: The path of the optimized model; None if onnxfold refuses the source, or if the model
            is larger than the cache.
        is_finished: Whether onnxruntime has optimized the model, too.
        source_files: The status of the files of the source, by path.
        files: The status of the files of the entry, by name.
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
    """Return the kept model of a source. If it is missing, optimize and keep the source first.

    Returns:
        The entry of the cache; None if the source cannot be kept. An entry has no model if onnxfold
        refuses the source, or if the model is larger than the cache.

    Raises:
        OnnxFoldError: The source cannot be optimized now.
        OSError: The cache folder cannot be written.
    """
    maker = _maker(options, providers)
    key = [FORMAT, onnxfold.__version__, ort.__version__, ort.get_build_info(), *fold.items()]
    if maker is not None:
        key += [cpu_features(), maker.graph_optimization_level, entries_of(maker, DECIDING)]
    if isinstance(source, bytes):
        name = hashlib.sha256(source).hexdigest()
    else:
        name = os.path.abspath(os.fsdecode(os.fspath(source)))
        source = name
    link = user_folder("sessions") / f"{hash_of(key, name)}.json"
    known = found(link)
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
        logger.debug("onnxruntime opens the model and reports the error: %s", error)
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
                finished = _write_model(source, new, fold, maker)
                size = sum(file.stat().st_size for file in os.scandir(new))
                for name in os.listdir(new) if size > limit else ():
                    os.remove(os.path.join(new, name))
                record = describe(Path(new), os.listdir(new))
                write_record(Path(new, RECORD), {**record, "settled": True, "finished": finished})
                if statuses(cache, names) != target["files"]:
                    raise OnnxFoldError("was changed while it was read", file=names[0])
                put(new, str(entry), limit - len(json.dumps(target)))  # room for the link
    write_record(link, target)
    return found(link)


def _maker(
    options: ort.SessionOptions | None, providers: Sequence[Provider] | None
) -> ort.SessionOptions | None:
    """Return the options with which onnxruntime optimizes a model for the cache.

    Returns:
        The options; None if a model that is optimized with these options and providers depends on
        the session, so that it cannot be kept.
    """
    available = set(ort.get_available_providers())
    names = {p if isinstance(p, str) else p[0] for p in providers or available}
    maker = ort.SessionOptions()
    if options is not None:
        if options.has_providers() or options.graph_optimization_level == _OFF:
            return None
        maker.graph_optimization_level = options.graph_optimization_level
        for name, value in entries_of(options, DECIDING).items():
            maker.add_session_config_entry(name, value)
    return maker if names & available <= _CPU else None


def found(link: Path) -> KeptModel | None:
    """Return the kept model to which a link refers, if no file has changed."""
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
    source: str | bytes, folder: str, fold: OptionArguments, maker: ort.SessionOptions | None
) -> bool:
    """Write the optimized model into a folder, or nothing if onnxfold rejects the source.

    Returns:
        Whether onnxruntime has optimized the model, too.

    Raises:
        OnnxFoldError: The source cannot be optimized now.
        OSError: The folder cannot be written.
    """
    from onnxfold.api.optimize import optimize
    from onnxfold.ir import storage
    from onnxfold.runtime.bundles.in_memory import has_custom_ops
    from onnxfold.runtime.splitting.dependence import worthwhile_inputs

    try:
        given = storage.opened(source)
        if isinstance(source, bytes) and given.meta[storage.EXTERNAL_KEY]:
            raise ModelError("the bytes of a model do not tell where its data files are")
        names = _names_of_values(given)
        options: OptionArguments = {**fold, "disable": rules_of_others()}
        model: ir.Model = optimize(given, **options)
    except ModelError as error:
        logger.info("the model is opened as it is: %s", error)
        return False
    path = os.path.join(folder, _MODEL)
    Path(folder, _NAMES).write_text(json.dumps(names), encoding="ascii")
    inputs = [[each.names, each.share] for each in worthwhile_inputs(model)]
    Path(folder, _INPUTS).write_text(json.dumps(inputs), encoding="ascii")
    if maker is not None and not has_custom_ops(model):
        with files.scratch_folder("session", parent=folder) as scratch:
            folded = os.path.join(scratch, "folded.onnx")
            made = os.path.join(scratch, "made.onnx")
            storage.save(model, folded, external_data=True, fsync=False)
            try:
                open_session(folded, write_optimized(maker, made))
                final = storage.load(made)
                final.model_version = model.model_version
                _save(final, path)
                del final  # its files are removed with the folder
                maker.optimized_model_filepath = ""
                maker.graph_optimization_level = _OFF
                open_session(path, maker)
                return True
            except Exception as error:  # onnxruntime raises many classes without a common base
                logger.info("onnxruntime cannot open what it makes of the model: %s", error)
    _save(model, path)
    return False


def rules_of_others() -> list[str]:
    """Return the rule sets of other packages.

    They are disabled: a later start does not compare the versions of these packages.
    """
    from onnxfold.rewrite.rule import available_rule_sets, builtin_rule_sets

    available = {rules.name for rules in available_rule_sets()}
    builtin = {rules.name for rules in builtin_rule_sets()}
    return sorted(available - builtin)


def inputs_worth_holding(kept: KeptModel) -> list[tuple[list[str], float]]:
    """Return the sets of inputs of a kept model that are worth holding constant.

    Each set has its share of the work, see
    `onnxfold.runtime.splitting.dependence.WorthwhileInputs`.
    """
    try:
        document = json.loads((kept.entry / _INPUTS).read_bytes())
        return [(list(names), float(share)) for names, share in document]
    except (OSError, ValueError, TypeError) as error:  # another process has just removed it
        logger.debug("%s: %s", kept.entry, error)
        return []


def _names_of_values(model: ir.Model) -> list[str]:
    """Return the names of all initializers, and of results, which onnxruntime may fold."""
    from onnxfold.ir.graphs import all_graphs

    names = set[str]()
    for graph in all_graphs(model):
        names.update(graph.initializers)
        names.update(value.name or "" for node in graph for value in node.outputs)
    return sorted(names)


def _save(model: ir.Model, path: str) -> None:
    """Write a model with its weights in a data file, at offsets from which onnxruntime maps them.

    The weights get names to which no session options refer.
    """
    from onnxfold.ir import storage

    for value in list(model.graph.initializers.values()):
        if not value.is_graph_input() and not value.is_graph_output():
            value.name = f"onnxfold:{value.name}"
    storage.save(model, path, external_data=_WEIGHTS)


def hash_of(*parts: Any) -> str:
    """Return a hash of values, as a name in the cache.

    Different values need a different ``repr``.
    """
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def warn(reason: str) -> None:
    """Log why the original model is opened, once for each reason and process."""
    logger.warning("models are opened without optimization: %s", reason)
