"""`onnxfold.InferenceSession`: onnxruntime's session, on a model that was optimized once and kept.

The user's cache folder holds entries, folders with an optimized model, whose name is a hash of the
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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import onnxruntime as ort

import onnxfold
from onnxfold.api.options import Level, OptionArguments, options_of
from onnxfold.api.signatures import checked
from onnxfold.api.targets import Target
from onnxfold.support import files, forks
from onnxfold.support.errors import ModelError, OnnxFoldError, suggestion
from onnxfold.support.file_contents import Status, describe, recorded, statuses, write_record
from onnxfold.support.memory import cpu_features
from onnxfold.support.onnxruntime_sessions import (
    DECIDING,
    copy_of,
    entries_of,
    open_session,
    provides_data,
    provides_initializers,
    write_optimized,
)
from onnxfold.support.user_caches import bytes_allowed, put, touch, user_folder

if TYPE_CHECKING:
    import onnx_ir as ir
    from typing_extensions import Unpack

    _Source = str | bytes | os.PathLike[str]
else:
    _Source = Any  # onnxruntime raises its own errors for other types

logger = logging.getLogger("onnxfold")

LIMIT = "ONNXFOLD_SESSION_CACHE_BYTES"
"""Environment variable: bytes that the cache may take; 0 keeps nothing."""

DEFAULT_LIMIT = 4 << 30

_FORMAT = 2
_MODEL, _WEIGHTS, _RECORD = "model.onnx", "weights", "record.json"
_NAMES = "names.json"
"""The names of the values of the source, for which session options may provide initializers."""
_OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
_CPU = frozenset(("CPUExecutionProvider", "AzureExecutionProvider"))
"""Providers for which onnxruntime's optimized model has no compiled nodes."""

_FOREIGN = (
    *("session.load_model_format", "session.model_external_initializers_file_folder_path"),
    *("session.save_model_format", "session.node_partition_config_file"),
    *("session.compile_only", "session.strict_shape_type_inference"),
    *("session.moe.offload.mode", "session.moe.offload.source_root"),
    *("session.layer_assignment_settings", "session.name_based_layer_assignment"),
    *("ep.context_enable", "ep.enable_weightless", "ep.enable_weightless_mode"),
    "ep.enable_weightless_ep_context_nodes",
)
"""Entries by which a session reads or writes other files, or is about the nodes of the model as it
is: onnxruntime opens the model itself."""

_Provider = str | tuple[str, dict[Any, Any]]


class _Further(TypedDict, total=False):
    """Further arguments of ``onnxruntime.InferenceSession``."""

    enable_fallback: bool | int
    read_config_from_model: bool | int
    disabled_optimizers: Iterable[str] | None


class InferenceSession(ort.InferenceSession):  # type: ignore[misc]
    """An ``onnxruntime.InferenceSession`` on the optimized model, which the first start makes.

    The optimized model is kept in the user's cache folder, and later sessions open it: on a CPU as
    onnxruntime optimized it, with weights in a mapped file. Where that is not possible, the session
    opens the model as it is: with options that read or write other files, without a writable cache
    folder, with options that provide initializers or external data in memory, and for models that
    onnxfold refuses.

    Args:
        path_or_bytes: The path or the bytes of a model.
        sess_options: onnxruntime's session options. Libraries of custom ops may only add ops of
            their own domains; the optimization computes onnx's ops as onnxruntime does.
        providers: Execution providers, as onnxruntime takes them.
        provider_options: Options of the providers, as onnxruntime takes them.
        level: The level of the optimization; None for 1, or 2 with a target.
        target: The target of the optimization, see `onnxfold.api.options.OptionArguments`.
        kwargs: Further arguments of ``onnxruntime.InferenceSession``.

    Raises:
        TypeError: There is no such keyword.
        UsageError: There is no such level or target.
        Exception: onnxruntime refuses the model, by one of many classes without a common base.
    """

    @checked
    def __init__(
        self,
        path_or_bytes: _Source,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[_Provider] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        level: Level | None = None,
        target: str | Target | None = None,
        **kwargs: Unpack[_Further],
    ) -> None:
        for name in kwargs.keys() - _Further.__annotations__.keys():
            near = suggestion(name, ("level", "target", *_Further.__annotations__))
            reason = f"InferenceSession() got an unexpected keyword argument {name!r}{near}"
            raise TypeError(reason)
        chosen = options_of({"target": target, **({} if level is None else {"level": level})})
        fold: OptionArguments = {"level": chosen.level, "target": target}
        self._onnxfold = path_or_bytes, sess_options, fold
        self._opened = forks.ProcessLocal[Any]()
        self._open(providers, provider_options, kwargs)

    def set_providers(
        self,
        providers: Sequence[_Provider] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        """Open the model again with other providers, see ``onnxruntime.InferenceSession``."""
        fallback = vars(self)["_enable_fallback"]
        self._open(providers, provider_options, {"enable_fallback": 0})
        self._enable_fallback = fallback

    @property
    def _sess(self) -> Any:
        """The session of onnxruntime's base class, which a forked process opens again."""
        return self._opened.get(self._open_again)

    @_sess.setter
    def _sess(self, session: Any) -> None:
        self._opened.set(session)

    def _open_again(self) -> Any:
        again = InferenceSession.__new__(InferenceSession)
        again._onnxfold = self._onnxfold
        again._opened = forks.ProcessLocal()
        again._open(*self._opening)
        self.__dict__.update({**vars(again), "_opened": self._opened})
        return again._opened.value

    def _open(self, providers: Any, provider_options: Any, kwargs: _Further) -> None:
        self._opening = providers, provider_options, kwargs
        source, options, fold = self._onnxfold
        kept = None
        if not _is_plain(source, options, kwargs):
            try:
                kept = _kept(source, options, providers, fold)
            except Exception as error:  # what makes a session faster must not make it fail
                _warn(str(error))
        if kept is not None and kept.model is not None and not _replaces_values(options, kept):
            opening = options
            try:
                if kept.is_finished:
                    opening = copy_of(options)
                    level, opening.graph_optimization_level = opening.graph_optimization_level, _OFF
                super().__init__(kept.model, opening, providers, provider_options, **kwargs)
            except Exception as error:  # onnxruntime raises many classes without a common base
                logger.info("%s is not opened: %s", kept.model, error)
            else:
                if _found(kept.link) == kept:  # nothing was replaced meanwhile
                    if kept.is_finished:
                        self.get_session_options().graph_optimization_level = level
                    self._model_path = None if isinstance(source, bytes) else os.fspath(source)
                    return
        super().__init__(source, options, providers, provider_options, **kwargs)


def _is_plain(source: Any, options: ort.SessionOptions | None, kwargs: _Further) -> bool:
    """Return whether onnxruntime must have the model as it is, or reads or writes other files."""
    if not isinstance(source, (str, bytes, os.PathLike)) or kwargs.keys() - {"enable_fallback"}:
        return True
    if bytes_allowed(LIMIT, DEFAULT_LIMIT) == 0 or os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL"):
        return True
    if not isinstance(source, bytes) and os.fspath(source).endswith(".ort"):
        return True
    if options is None:
        return False
    if options.optimized_model_filepath or any(entries_of(options, _FOREIGN).values()):
        return True
    return provides_data(options)


def _replaces_values(options: ort.SessionOptions | None, kept: _Kept) -> bool:
    """Return whether options provide an initializer for a value of the source of a kept model."""
    if options is None:
        return False
    try:
        names = json.loads(Path(str(kept.model)).with_name(_NAMES).read_bytes())
    except (OSError, ValueError) as error:  # another process has just removed it
        logger.debug("%s: %s", kept.model, error)
        return True
    return provides_initializers(options, names)


class _Kept(NamedTuple):
    link: Path
    model: str | None
    is_finished: bool  # by onnxruntime
    files: Mapping[str, Status]  # those of the source, too


def _kept(
    source: str | bytes | os.PathLike[str],
    options: ort.SessionOptions | None,
    providers: Sequence[_Provider] | None,
    fold: OptionArguments,
) -> _Kept | None:
    """Return the kept model of a source, made first if it is missing; None if it cannot be kept. An
    entry without a model stands for one that is larger than the cache, or refused by onnxfold.
    Errors say that it cannot be optimized now, or that the cache folder cannot be written.
    """
    maker = _maker(options, providers)
    key = [_FORMAT, onnxfold.__version__, ort.__version__, ort.get_build_info(), *fold.items()]
    if maker is not None:
        key += [cpu_features(), maker.graph_optimization_level, entries_of(maker, DECIDING)]
    if isinstance(source, bytes):
        name = hashlib.sha256(source).hexdigest()
    else:
        name = source = os.path.abspath(os.fsdecode(os.fspath(source)))
    link = user_folder("sessions") / f"{_hash(key, name)}.json"
    found = _found(link)
    if found is not None:
        return found
    from onnxfold.ir.storage.load import external_files

    cache, limit, names = link.parent, bytes_allowed(LIMIT, DEFAULT_LIMIT), []
    try:
        if isinstance(source, str):
            names = [source, *external_files(source)]
        target = describe(cache, names)
    except (OnnxFoldError, OSError, ValueError) as error:
        logger.debug("onnxruntime is to say what is wrong: %s", error)
        return None
    if (sum(map(os.path.getsize, names)) if names else len(source)) > limit:
        return None
    target["entry"] = _hash(key, target["digest"] if names else link.stem)
    entry = cache / target["entry"]
    os.makedirs(cache, mode=0o700, exist_ok=True)
    files.remove_leftovers(str(cache))
    with files.locked(str(entry)):
        if recorded(entry / _RECORD) is None:
            shutil.rmtree(entry, ignore_errors=True)
            with files.scratch_folder("session", parent=str(cache)) as new:
                finished = _write_model(source, new, fold, maker)
                size = sum(file.stat().st_size for file in os.scandir(new))
                for name in os.listdir(new) if size > limit else ():
                    os.remove(os.path.join(new, name))
                record = describe(Path(new), os.listdir(new))
                write_record(Path(new, _RECORD), {**record, "settled": True, "finished": finished})
                if statuses(cache, names) != target["files"]:
                    raise OnnxFoldError("was changed while it was read", file=names[0])
                put(new, str(entry), limit - len(json.dumps(target)))  # room for the link
    write_record(link, target)
    return _found(link)


def _maker(
    options: ort.SessionOptions | None, providers: Sequence[_Provider] | None
) -> ort.SessionOptions | None:
    """Return options by which onnxruntime optimizes a model to be kept; None if what it makes with
    these options and providers cannot be kept.
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


def _found(link: Path) -> _Kept | None:
    """Return what a link leads to, if the content of all files is what it was."""
    target = recorded(link)
    if target is None:
        return None
    entry = link.parent / target["entry"]
    record = recorded(entry / _RECORD)
    if record is None:
        return None
    touch(link)
    touch(entry)
    model = str(entry / _MODEL) if _MODEL in record["files"] else None
    return _Kept(link, model, record["finished"], {**target["files"], **record["files"]})


def _write_model(
    source: str | bytes, folder: str, fold: OptionArguments, maker: ort.SessionOptions | None
) -> bool:
    """Write the optimized model into a folder; nothing if onnxfold refuses the source. Return
    whether onnxruntime has optimized it, too. Errors are those of `_kept`.
    """
    from onnxfold.api.optimize import optimize
    from onnxfold.ir import storage
    from onnxfold.rewrite.rule import available_rule_sets, builtin_rule_sets
    from onnxfold.runtime.bundles.in_memory import has_custom_ops

    # a later start does not look for the versions of other packages
    others = {rules.name for rules in available_rule_sets()}
    others -= {rules.name for rules in builtin_rule_sets()}
    try:
        given = storage.opened(source)
        if isinstance(source, bytes) and given.meta[storage.EXTERNAL_KEY]:
            raise ModelError("the bytes of a model do not tell where its data files are")
        names = _names_of_values(given)
        options: OptionArguments = {**fold, "disable": [*others]}
        model: ir.Model = optimize(given, **options)
    except ModelError as error:
        logger.info("the model is opened as it is: %s", error)
        return False
    path = os.path.join(folder, _MODEL)
    Path(folder, _NAMES).write_text(json.dumps(names), encoding="ascii")
    if maker is not None and not has_custom_ops(model):
        with files.scratch_folder("session", parent=folder) as scratch:
            folded, made = os.path.join(scratch, "folded.onnx"), os.path.join(scratch, "made.onnx")
            storage.save(model, folded, external_data=True, fsync=False)
            try:
                open_session(folded, write_optimized(maker, made))
                final = storage.load(made)
                final.model_version = model.model_version
                _save(final, path)
                maker.optimized_model_filepath = ""
                maker.graph_optimization_level = _OFF
                open_session(path, maker)
                return True
            except Exception as error:  # onnxruntime raises many classes without a common base
                logger.info("onnxruntime cannot open what it makes of the model: %s", error)
    _save(model, path)
    return False


def _names_of_values(model: ir.Model) -> list[str]:
    """Return the names of all initializers, and of results, which onnxruntime may fold to such."""
    from onnxfold.ir.graphs import all_graphs

    names = set[str]()
    for graph in all_graphs(model):
        names.update(graph.initializers)
        names.update(value.name or "" for node in graph for value in node.outputs)
    return sorted(names)


def _save(model: ir.Model, path: str) -> None:
    """Write a model with its weights beside it, at places from which onnxruntime maps them. The
    weights get names to which no session options refer.
    """
    from onnxfold.ir import storage

    for value in list(model.graph.initializers.values()):
        if not value.is_graph_input() and not value.is_graph_output():
            value.name = f"onnxfold:{value.name}"
    storage.save(model, path, external_data=_WEIGHTS)


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def _warn(reason: str) -> None:
    """Log why a model is opened as it is, once a process for each reason."""
    logger.warning("models are opened without optimization: %s", reason)
