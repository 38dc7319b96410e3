"""Writing models: where the files go, in which layout, and what is refused."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold import files
from onnxfold.errors import OnnxFoldError, UsageError, about
from onnxfold.signatures import Positive, checked
from onnxfold.storage.commit import Commit
from onnxfold.storage.layout import SavePlan, planned, sharer
from onnxfold.storage.sources import Sources
from onnxfold.storage.tensors import tensors_of


@dataclass(frozen=True)
class SaveReport:
    """What a save did.

    Attributes:
        bytes_total: Length of all files written.
        bytes_shared: Tensors not written but referred to where they are.
    """

    bytes_total: int
    bytes_shared: int


@checked
def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | str | None = None,
    share_weights: bool = False,
    fsync: bool = True,
    threads: Positive = 2,
    progress: Callable[[int, int], None] | None = None,
    plan: SavePlan | None = None,
    check: Callable[[str], None] | None = None,
) -> SaveReport:
    """Write ``model`` to ``path``; memory does not grow with its tensors.

    Safe in place: the model may have been loaded from the very path, and stays usable. Whatever
    happens, the path leads to the old model or to the complete new one.

    Args:
        model: The model; unchanged afterwards.
        path: The file to write; a symbolic link is followed.
        external_data: False for one file, True for a data file ``NAME.onnx.data`` beside it, a
            string for a data file of that name. None: as the model came, but external above 2 GiB.
        share_weights: Do not write tensors that already are in a file at or below the folder of
            ``path``; refer to them there. Implies external data.
        fsync: Wait until the files are on the disk before they are put in place.
        threads: How many threads compute and write.
        progress: Called in the calling thread with bytes written and bytes to write.
        plan: What `planned` gave for the model as it still is, used if no layout is asked for.
        check: Called with the path of the written model before it is put in place; an exception of
            it leaves everything as it was.

    Raises:
        UsageError: The arguments do not go together, or a file that is in use would be replaced.
        ModelError: The model cannot be serialized, or a file that it was loaded from was changed.
        OnnxFoldError: The disk is full, the folder is missing or not writable...
    """
    name = os.fsdecode(os.fspath(path))
    target = real_target(name)
    sources = Sources(model, target, tensors_of(model))
    sources.check_target()
    forced = external_data if isinstance(external_data, str) else None
    locks = {target}
    if share_weights and external_data is False:
        raise UsageError("weights can be shared only with external data", file=target)
    if forced is not None:
        _check_data_name(forced, target)
        # Processes that give a data file another name than the model's could give it the same name.
        locks.add(os.path.join(os.path.dirname(target), forced))
    try:
        if plan is None or external_data is not None or share_weights:
            share = sharer(os.path.dirname(target), target) if share_weights else None
            with about(target):
                plan = planned(model, external_data, share)
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(files.locked(lock)) for lock in sorted(locks)]
            # First: the disk may be full of it, or the name of the data file be taken.
            commit = Commit(target, sources, fsync=fsync, killed=any(found))
            data_path = _data_path(plan, target, forced, sources)
            if data_path or plan.locations:
                _check_link(name, target)
            size = commit.run(plan, data_path, threads, progress, check)
    except Exception as error:
        sources.check_unchanged()  # that may be why
        if isinstance(error, OSError) and not isinstance(error, OnnxFoldError):
            raise files.os_error(error, target) from error
        raise
    return SaveReport(size, plan.shared)


def check_destination(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """See that a loaded model may be saved to ``path``, as far as is known before it is changed.

    Raises:
        UsageError: It is no file, its folder is missing, or it is a data file of the model.
    """
    Sources(model, real_target(os.fsdecode(os.fspath(path)))).check_target()


def real_target(path: str) -> str:
    """Return the absolute path of the file to write, links followed.

    Raises:
        UsageError: It is no file, or its folder is missing.
    """
    real = os.path.realpath(path)
    _check_place(path)
    if not os.path.isdir(os.path.dirname(real)):
        raise UsageError("cannot be written: its folder does not exist", file=path)
    return real


def _check_place(path: str) -> None:
    """See that there is nothing, or a file that may be replaced."""
    if os.path.isdir(path):
        raise UsageError("cannot be written: it is a folder", file=path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError("cannot be written: it is not a regular file", file=path)


def _check_link(name: str, target: str) -> None:
    """See that a model with external data is not written through a link from another folder."""
    if os.path.realpath(os.path.dirname(name) or ".") != os.path.dirname(target):
        reason = (
            f"is a symbolic link to {target!r}: a model with external data cannot be read "
            "through a link from another folder; give the real path"
        )
        raise UsageError(reason, file=name)


def _check_data_name(name: str, target: str) -> None:
    if not name or name in (".", "..") or os.path.basename(name) != name or "\0" in name:
        raise UsageError(
            f"data file {name!r} must be a plain file name: it lies beside the model", file=target
        )
    if os.path.join(os.path.dirname(target), name) == target:
        raise UsageError("the data file cannot have the name of the model", file=target)


def _data_path(plan: SavePlan, target: str, forced: str | None, sources: Sources) -> str | None:
    """Return where the data file goes; None when there is none.

    Raises:
        UsageError: A file there is in use: by the new model, or by another model in the folder.
    """
    if plan.data is None:
        return None
    folder = os.path.dirname(target)
    shared = {os.path.join(folder, location) for location in plan.locations}
    path = os.path.join(folder, forced or os.path.basename(target) + ".data")
    if path in shared:
        if forced is not None:
            raise UsageError(f"{forced!r} holds weights that are to be shared", file=target)
        number = 1
        while os.path.lexists(path):
            path = os.path.join(folder, f"{os.path.basename(target)}.{number}.data")
            number += 1
    if not files.is_text(os.path.basename(path)):
        raise UsageError(
            f"a model cannot refer to the data file {os.path.basename(path)!r}, whose name is not "
            "UTF-8 text; give another name for the data file",
            file=target,
        )
    _check_place(path)
    sources.check_data(path)
    return path
