"""Cache split models in the user's cache folder, for sessions that hold inputs constant.

A bundle is an entry of the same cache as the optimized model, see `onnxfold.runtime.kept_models`. A
link contains the names of the detected inputs of the last split. With these names, a later session
can open the bundle before its first run. A child process splits the model, because the analysis
would delay runs in this process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.api.options import OptionArguments, SplitArguments
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import FOLD_FILE, MANIFEST, Manifest
from onnxfold.runtime.kept_models import (
    DEFAULT_LIMIT,
    LIMIT,
    RECORD,
    KeptModel,
    hash_of,
    third_party_rule_sets,
)
from onnxfold.support import files, isolated
from onnxfold.support.errors import OnnxFoldError
from onnxfold.support.file_contents import describe, recorded, statuses, write_record
from onnxfold.support.onnxruntime_sessions import open_session, session_options
from onnxfold.support.system import lower_priority
from onnxfold.support.user_caches import bytes_allowed, put, touch

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxfold.runtime.bundles.in_memory import InMemoryBundle

logger = logging.getLogger("onnxfold")

_SHARE = "share"
_NAMES = "names"

_CLEAR_SHARE = 0.5
"""Share of the work in runtime_fold from which entry is assumed to be faster than the model.

With a smaller share, entry and the model are measured, unless the caller named the inputs.
"""

_MIN_SPEEDUP = 1.05
"""Minimum measured speed of entry, relative to the model, at which detected inputs are held
constant."""

_ROUNDS = 5
"""Number of measured rounds. Entry and the model run in each round."""


class KeptBundle(Bundle):
    """A bundle in the cache. Its kernels are compiled for each session, as for a model in memory.

    Attributes:
        share: The share of a run's work that is in runtime_fold, at the sizes of the split.
    """

    compiles_ahead = True

    def __init__(self, folder: Path, manifest: Manifest, share: float) -> None:
        super().__init__(folder, manifest)
        self.share = share

    @property
    def fold_key(self) -> str:
        """The name of the folder, which identifies the cached model and the names of the inputs.

        The name does not depend on the sizes of the split, which may differ if the bundle is cached
        again after its eviction. Sessions on such bundles must therefore not share a `FoldCache`.
        """
        return self.folder.name

    @contextlib.contextmanager
    def serialized(self, part: str) -> Iterator[bytes]:
        """Yield a part in the format of `onnxfold.runtime.bundles.in_memory.deserialized`."""
        from onnxfold.runtime.bundles.in_memory import InMemoryBundle

        model = self.load(part)
        with InMemoryBundle(self.manifest, model, model).serialized(part) as content:
            yield content


def last_names(kept: KeptModel) -> list[str]:
    """Return the detected inputs by which a cached model was split last.

    The list is empty if there was no such split, or if the link is missing or damaged.
    """
    link = recorded(_link(kept))
    return [] if link is None else list(link[_NAMES])


def kept_bundle(kept: KeptModel, names: Sequence[str]) -> KeptBundle | None:
    """Return the cached bundle of a model that is split by these inputs.

    The result is None if there is no such bundle, or if it was changed or is damaged.
    """
    folder = _folder(kept, names)
    record = recorded(folder / RECORD)
    if record is None:
        return None
    try:
        document = json.loads((folder / MANIFEST).read_bytes())
        bundle = KeptBundle(folder, Manifest.from_dict(document), float(record[_SHARE]))
    except (OSError, ValueError, TypeError, LookupError) as error:
        logger.debug("%s: %s", folder, error)
        return None
    touch(folder)
    touch(_link(kept))
    return bundle


def make_kept_bundle(
    kept: KeptModel,
    source: str | bytes,
    names: Sequence[str],
    sizes: Mapping[str, int],
    fold: OptionArguments,
    *,
    is_named: bool,
) -> str | None:
    """Split the source of a cached model in a child process, and cache the bundle.

    Unless the caller named the inputs, their names are recorded for `last_names`.

    Args:
        kept: The cached model.
        source: The absolute path or the bytes of the source.
        names: The inputs to hold constant.
        sizes: Sizes of symbolic dimensions, by name.
        fold: The level and target of the optimization. The target is a name or None.
        is_named: Whether the caller named the inputs. The bundle is then cached even if it saves
            little.

    Returns:
        None if the bundle is cached, otherwise the reason why it is not worthwhile.

    Raises:
        onnxfold.support.isolated.Failure: The model cannot be split, or the bundle cannot be
            cached.
    """
    arrays = [] if isinstance(source, str) else [np.frombuffer(source, np.uint8)]
    request = [
        source if isinstance(source, str) else None,
        kept.model,
        list(names),
        dict(sizes),
        dict(fold),
        str(_folder(kept, names)),
        dict(kept.source_files),
        is_named,
    ]
    function = f"{__name__}:split_in_child"
    reason, _ = isolated.run(function, request, arrays)
    if reason is None and not is_named:
        link = describe(kept.entry.parent, [])
        write_record(_link(kept), {**link, _NAMES: list(names)})
    return reason  # type: ignore[no-any-return]


def split_in_child(request: Sequence[Any], arrays: Sequence[Any]) -> tuple[str | None, list[Any]]:
    """Split a model and cache the bundle. `make_kept_bundle` calls this in a child process.

    Args:
        request: The arguments of `make_kept_bundle`, the path of the cached model, and the folder
            of the bundle. The path of the source is None for a model in bytes.
        arrays: The bytes of the source if its path is None.

    Returns:
        The reason why the bundle is not worthwhile, or None if it is cached. The list is empty.

    Raises:
        OnnxFoldError: The model cannot be split or was changed meanwhile, or the bundle is larger
            than the cache.
        OSError: The cache cannot be changed.
    """
    from onnxfold.runtime.splitting.dependence import MIN_SHARE

    path, model, names, sizes, fold, target, source_files, is_named = request
    lower_priority()
    folder = Path(target)
    with files.locked(target):
        if recorded(folder / RECORD) is not None:
            return None, []
        source = path if path is not None else arrays[0].tobytes()
        bundle = _split(source, names, sizes, fold)
        share = _share_of(bundle.parts, sizes)
        if share < MIN_SHARE and not is_named:
            return f"only {share:.1%} of the work can be folded", []
        with files.scratch_folder("session", parent=str(folder.parent)) as scratch:
            new = Path(scratch)
            _write(bundle, new)
            if share < _CLEAR_SHARE and not is_named:
                speedup = _speedup(model, new, sizes)
                if speedup is not None and speedup < _MIN_SPEEDUP:
                    return f"entry is only {speedup:.2f} times as fast as the model", []
            if statuses(folder.parent, source_files) != source_files:
                raise OnnxFoldError("the model was changed while it was split")
            record = describe(new, os.listdir(new))
            write_record(new / RECORD, {**record, "settled": True, _SHARE: share})
            put(scratch, str(folder), bytes_allowed(LIMIT, DEFAULT_LIMIT))
    return None, []


def _split(
    source: str | bytes, names: Sequence[str], sizes: Mapping[str, int], fold: OptionArguments
) -> InMemoryBundle:
    from onnxfold.ir import storage
    from onnxfold.runtime.split_model import split_in_memory

    arguments: SplitArguments = {
        "runtime_constants": names,
        "nominal": sizes,
        "disable": third_party_rule_sets(),
        "level": fold["level"],
        "target": fold["target"],
    }
    return split_in_memory(storage.opened(source), backend="onnxruntime", **arguments)


def _write(bundle: InMemoryBundle, folder: Path) -> None:
    """Write the parts and the manifest of a bundle.

    Raises:
        OnnxFoldError: The parts are larger than the cache.
    """
    from onnxfold.ir import storage

    limit = bytes_allowed(LIMIT, DEFAULT_LIMIT)
    parts = bundle.parts
    plans = {part: storage.planned(model, external_data=True) for part, model in parts.items()}
    size = sum(plan.size for plan in plans.values())
    if size > limit:
        raise OnnxFoldError(f"the split model takes {size} bytes, but {LIMIT} allows {limit}")
    for part, plan in plans.items():
        storage.save(parts[part], folder / part, plan=plan, fsync=False)
    (folder / MANIFEST).write_text(json.dumps(bundle.manifest.to_dict()), encoding="utf-8")


def _speedup(model: str, bundle: Path, sizes: Mapping[str, int]) -> float | None:
    """Return the speed of entry relative to the model, on one thread.

    Args:
        model: The path of the optimized model.
        bundle: The folder of the bundle.
        sizes: Sizes of symbolic dimensions, by name.

    Returns:
        The median of several rounds. None if the model does not run on random inputs.
    """
    from onnxfold.ir import storage
    from onnxfold.runtime.sessions.session import Session
    from onnxfold.tools.bench.side_by_side import timed_runs
    from onnxfold.tools.comparison.dims import symbols_of

    known = symbols_of(storage.load(model).graph.inputs)
    dims = {name: size for name, size in sizes.items() if name in known}
    original = open_session(model, session_options(threads=1))
    entry = Session(bundle, session_options(threads=1), backend="onnxruntime")
    try:
        seconds, _ = timed_runs(model, [original, entry], 1, dims, rounds=_ROUNDS)
    except OnnxFoldError as error:
        logger.debug("%s: the speed of the split model is not measured: %s", model, error)
        return None
    speedups = [before / after for before, after in zip(*seconds, strict=True)]
    return float(statistics.median(speedups))


def _share_of(parts: Mapping[str, ir.Model], sizes: Mapping[str, int]) -> float:
    """Return the share of runtime_fold in the work of both parts, from 0 to 1."""
    if FOLD_FILE not in parts:
        return 0.0
    from onnxfold.runtime.splitting.dependence import work_of_graph

    work = {name: work_of_graph(part.clone(), sizes) for name, part in parts.items()}
    return work[FOLD_FILE] / sum(work.values())


def _folder(kept: KeptModel, names: Sequence[str]) -> Path:
    return kept.entry.parent / hash_of("bundle", kept.entry.name, sorted(names))


def _link(kept: KeptModel) -> Path:
    return kept.entry.parent / f"{hash_of('split by', kept.entry.name)}.json"
