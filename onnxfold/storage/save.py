"""Writing models: where the files go, in which layout, and what is refused."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import onnx_ir as ir

from onnxfold import files
from onnxfold.errors import UsageError
from onnxfold.storage.commit import Commit, SaveReport, refuse_if_used, sweep
from onnxfold.storage.layout import (
    MAX_MODEL,
    SavePlan,
    can_leave,
    plan_model,
    sharer,
)
from onnxfold.storage.load import EXTERNAL_KEY, is_text
from onnxfold.storage.sources import Sources, reading_from
from onnxfold.storage.streaming import is_streamed
from onnxfold.storage.tensors import data_bytes, tensors_of

# What names, shapes and small tensors may take when it is decided whether one file is enough.
_SLACK = 64 << 20


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | str | None = None,
    share_weights: bool = False,
    fsync: bool = True,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
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

    Raises:
        UsageError: The arguments do not go together, or a file that is in use would be replaced.
        ModelError: The model cannot be serialized, or a file that it was loaded from was changed.
        OnnxFoldError: The disk is full, the folder is missing or not writable...
    """
    began = time.monotonic()
    name = os.fsdecode(os.fspath(path))
    target = _target(name)
    try:
        with reading_from(model):
            report = _save(
                model, name, target, external_data, share_weights, fsync, threads, progress
            )
    except OSError as error:
        raise files.os_error(error, target) from error
    report.seconds = time.monotonic() - began
    return report


def check_destination(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """See that ``model`` may be saved to ``path``, as far as that is known before it is changed.

    Raises:
        UsageError: It is no file, its folder is missing, or it is a data file of the model.
    """
    target = _target(os.fsdecode(os.fspath(path)))
    Sources(model, tensors_of(model), target).check_target()


def _target(path: str) -> str:
    """Return the absolute path of the file to write, links followed."""
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


def _save(
    model: ir.Model,
    name: str,
    target: str,
    external_data: bool | str | None,
    share_weights: bool,
    fsync: bool,
    threads: int,
    progress: Callable[[int, int], None] | None,
) -> SaveReport:
    folder = os.path.dirname(target)
    forced = external_data if isinstance(external_data, str) else None
    if forced is not None:
        _check_data_name(forced, target)
    tensors = tensors_of(model)
    sources = Sources(model, tensors, target)
    sources.check_target()
    if share_weights and external_data is False:
        raise UsageError("weights can be shared only with external data", file=target)
    external = bool(external_data) or share_weights
    if external_data is None and not external:
        external = _is_external(model, tensors) or _large_bytes(tensors) > MAX_MODEL - _SLACK
    plan: SavePlan | None = None
    if not external:
        try:
            plan = plan_model(model)
        except UsageError as error:
            if external_data is False:
                raise UsageError(error.reason, file=target) from None
    if plan is None:
        share = sharer(folder, target) if share_weights else lambda span: None
        plan = plan_model(model, share)
    streamed = [tensor for tensor in tensors if is_streamed(tensor)]
    # Processes that give a data file another name than the model's could give it the same name.
    locks = sorted({target, os.path.join(folder, forced) if forced is not None else target})
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(files.locked(path)) for path in locks]
        # First: the disk may be full of it, or the name of the data file be taken.
        sweep(target, sources, killed=any(found))
        data_path = _data_path(plan, target, forced)
        if data_path is not None:
            sources.check_data(data_path)
        if (data_path or plan.locations) and os.path.realpath(
            os.path.dirname(name) or "."
        ) != folder:
            raise UsageError(
                f"is a symbolic link to {target!r}: a model with external data cannot be read "
                "through a link from another folder; give the real path",
                file=name,
            )
        return Commit(plan, target, data_path, fsync, streamed, sources).run(threads, progress)


def _is_external(model: ir.Model, tensors: list[ir.TensorProtocol]) -> bool:
    if EXTERNAL_KEY in model.meta:
        return bool(model.meta[EXTERNAL_KEY])
    return any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors)


def _large_bytes(tensors: list[ir.TensorProtocol]) -> int:
    return sum(data_bytes(tensor.dtype, tensor.shape) for tensor in tensors if can_leave(tensor))


def _check_data_name(name: str, target: str) -> None:
    if not name or name in (".", "..") or os.path.basename(name) != name or "\0" in name:
        raise UsageError(
            f"data file {name!r} must be a plain file name: it lies beside the model", file=target
        )
    if os.path.join(os.path.dirname(target), name) == target:
        raise UsageError("the data file cannot have the name of the model", file=target)


def _data_path(plan: SavePlan, target: str, forced: str | None) -> str | None:
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
    if not is_text(os.path.basename(path)):
        raise UsageError(
            f"a model cannot refer to the data file {os.path.basename(path)!r}, whose name is not "
            "UTF-8 text; give another name for the data file",
            file=target,
        )
    _check_place(path)
    refuse_if_used(path, target)
    return path
