"""Writing models: streamed, and either wholly or not at all.

In one file: written beside the target, renamed over it.

With external data there are two files, and no call renames two files at once. Where there is no old
model, or no old data file, the data are put in place first and the model last. Where a model with
its data is replaced:

1. the new data get a fresh durable name,
2. a model that refers to that name is renamed over the target,
3. the data get their usual name as well (a hard link; a copy where there are none),
4. a model that refers to the usual name is renamed over the target,
5. the fresh name is removed.

So at any moment the model at the target refers to the data it was written with; between 3 and 5
they have two names. A process that dies in between leaves a fresh name behind: if the model refers
to it, it is complete, and otherwise the next save to the same target removes it. A reader that
opened the old model before step 2 and opens the data by name after step 3 sees new data: readers
would have to take a lock for that, and they do not.

The data file of the old model is removed when the new model needs none, if it has the usual name
(``NAME.onnx.data``), the old model referred to it, and no other ``.onnx`` file in the folder does.
Likewise a data file that another model in the folder refers to is not overwritten.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxfold.errors import ModelError, UsageError
from onnxfold.graphs import all_graphs
from onnxfold.storage import atomic
from onnxfold.storage.atomic import TempFile
from onnxfold.storage.decode import attribute_maps
from onnxfold.storage.layout import (
    MAX_MODEL,
    FilePlan,
    Plan,
    can_leave,
    nbytes_of,
    plan_external,
    plan_single,
    sharer,
)
from onnxfold.storage.load import EXTERNAL_KEY, external_locations
from onnxfold.storage.tensors import span_of
from onnxfold.storage.writer import Writer, is_streamed

# What names, shapes and small tensors may take when it is decided whether one file is enough.
_SLACK = 64 << 20


@dataclass
class SaveReport:
    """What a save did.

    Attributes:
        path: The model written (links followed).
        data_files: The data files it refers to, new ones and shared ones.
        bytes_total: Length of all files written.
        bytes_computed: Of that, tensors computed on the way or taken from memory.
        bytes_copied: Of that, tensors copied from other files.
        bytes_shared: Tensors not written but referred to where they are.
        seconds: How long it took.
    """

    path: str
    data_files: list[str] = field(default_factory=list)
    bytes_total: int = 0
    bytes_computed: int = 0
    bytes_copied: int = 0
    bytes_shared: int = 0
    seconds: float = 0.0


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
    happens, the path leads to the old model or to the complete new one. While it is being
    serialized the model holds stand-ins, so no other thread may use it during the call.

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
        ModelError: The model cannot be serialized.
        OnnxFoldError: The disk is full, the folder is missing or not writable...
    """
    began = time.monotonic()
    name = os.fsdecode(os.fspath(path))
    target = _target(name)
    try:
        report = _save(model, name, target, external_data, share_weights, fsync, threads, progress)
    except OSError as error:
        raise atomic.os_error(error, target) from error
    report.seconds = time.monotonic() - began
    return report


def model_bytes(model: ir.Model | str | os.PathLike[str]) -> int:
    """Return how many bytes a model takes with its external data.

    Args:
        model: A path: the length of the file and of the data files it refers to. A model: the
            length of its tensors; those that share their place in a file count once.

    Raises:
        ModelError: The path is not a model, or a data file is missing.
    """
    if isinstance(model, ir.Model):
        seen: set[object] = set()
        total = 0
        for tensor in _tensors(model):
            span = None if is_streamed(tensor) else span_of(tensor)
            key = (span.file.key, span.offset, span.length) if span else id(tensor)
            if key not in seen:
                seen.add(key)
                total += nbytes_of(tensor)
        return total
    name = os.fsdecode(os.fspath(model))
    files = {os.path.realpath(name)}
    for location in external_locations(name):
        files.add(os.path.realpath(os.path.join(os.path.dirname(name), location)))
    try:
        return sum(os.stat(file).st_size for file in files)
    except OSError as error:
        raise ModelError(f"external data: {error.strerror}", file=error.filename or name) from None


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    """Return the tensors of initializers and attributes everywhere in the model."""
    found: dict[int, ir.TensorProtocol] = {}
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                found[id(value.const_value)] = value.const_value
        for attributes in attribute_maps(model, graph):
            for attribute in attributes.values():
                if attribute.is_ref() or attribute.value is None:
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    found[id(attribute.value)] = attribute.value
                elif attribute.type == ir.AttributeType.TENSORS:
                    found.update((id(tensor), tensor) for tensor in attribute.value)
    return list(found.values())


def _target(path: str) -> str:
    """Return the absolute path of the file to write, links followed."""
    real = os.path.realpath(path)
    if os.path.isdir(real):
        raise UsageError("cannot be written: it is a folder", file=path)
    if not os.path.isdir(os.path.dirname(real)):
        raise UsageError("cannot be written: its folder does not exist", file=path)
    if os.path.exists(real) and not os.path.isfile(real):
        raise UsageError("cannot be written: it is not a regular file", file=path)
    return real


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
    if share_weights and external_data is False:
        raise UsageError("weights can be shared only with external data", file=target)
    external = bool(external_data) or share_weights
    if external_data is None and not external:
        external = _is_external(model) or _large_bytes(model) > MAX_MODEL - _SLACK
    plan: Plan | None = None
    if not external:
        try:
            plan = plan_single(model)
        except UsageError as error:
            if external_data is False:
                raise UsageError(error.reason, file=target) from None
    if plan is None:
        share = sharer(folder, target) if share_weights else lambda span: None
        plan = plan_external(model, share)
        try:
            plan.model("")
        except UsageError:
            plan = plan_external(model, share, move_attributes=True)
    data_path = _data_path(plan, target, forced)
    if (data_path or plan.locations) and os.path.realpath(os.path.dirname(name) or ".") != folder:
        raise UsageError(
            f"is a symbolic link to {target!r}: a model with external data cannot be read through "
            "a link from another folder; give the real path",
            file=name,
        )
    streamed = [tensor for tensor in _tensors(model) if is_streamed(tensor)]
    return _Commit(plan, target, data_path, fsync, streamed).run(threads, progress)


def _is_external(model: ir.Model) -> bool:
    if EXTERNAL_KEY in model.meta:
        return bool(model.meta[EXTERNAL_KEY])
    return any(isinstance(tensor, ir.ExternalTensor) for tensor in _tensors(model))


def _large_bytes(model: ir.Model) -> int:
    return sum(nbytes_of(tensor) for tensor in _tensors(model) if can_leave(tensor))


def _check_data_name(name: str, target: str) -> None:
    if not name or name in (".", "..") or os.path.basename(name) != name or "\0" in name:
        raise UsageError(
            f"data file {name!r} must be a plain file name: it lies beside the model", file=target
        )
    if os.path.join(os.path.dirname(target), name) == target:
        raise UsageError("the data file cannot have the name of the model", file=target)


def _data_path(plan: Plan, target: str, forced: str | None) -> str | None:
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
    if os.path.isdir(path):
        raise UsageError("cannot be written: it is a folder", file=path)
    if os.path.lexists(path):
        users = _other_users(path, target)
        if users:
            raise UsageError(
                f"{os.path.basename(path)!r} also holds the data of {users[0]!r}; "
                "give another name for the data file",
                file=target,
            )
    return path


def _other_users(data_path: str, target: str) -> list[str]:
    """Return the models in the folder, other than ``target``, that refer to the data file."""
    folder, name = os.path.split(data_path)
    users = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".onnx") and entry.path != target and entry.is_file():
                with contextlib.suppress(ModelError):
                    if name in external_locations(entry.path):
                        users.append(entry.name)
    return users


class _Commit:
    """Writes the files of a plan and puts them in place."""

    def __init__(
        self,
        plan: Plan,
        target: str,
        data_path: str | None,
        fsync: bool,
        streamed: list[ir.TensorProtocol],
    ) -> None:
        self.plan = plan
        self.target = target
        self.data_path = data_path
        self.fsync = fsync
        self.temps: list[TempFile] = []
        self.unreleased: dict[int, Any] = {id(tensor): tensor for tensor in streamed}

    def run(self, threads: int, progress: Callable[[int, int], None] | None) -> SaveReport:
        plan, target, data_path = self.plan, self.target, self.data_path
        usual = target + ".data"
        old_locations = self.old_locations(usual)
        two_steps = data_path is not None and os.path.exists(target) and os.path.exists(data_path)
        fresh = atomic.fresh_name(data_path) if data_path is not None and two_steps else None
        data_name = os.path.basename(data_path) if data_path else ""
        model_plan = plan.model(os.path.basename(fresh) if fresh else data_name)
        sizes = [model_plan.size, plan.data.size if plan.data else 0]
        total = sum(len(literal) for _, literal in model_plan.literals)
        for file in (model_plan, plan.data):
            total += sum(place.length for place in file.tensors) if file else 0
        try:
            with Writer(threads, total, progress, flush=self.fsync) as writer:
                data = None
                if plan.data is not None and data_path is not None:
                    data = self.file(data_path, plan.data, writer)
                model = self.file(target, model_plan, writer)
                second = None
                if fresh is not None:
                    second = self.second(model, model_plan, plan.model(data_name), writer)
                report = SaveReport(
                    target,
                    bytes_total=sum(sizes),
                    bytes_computed=writer.computed,
                    bytes_copied=writer.copied,
                    bytes_shared=plan.shared,
                )
            self.place(data, model, second, fresh)
        finally:
            for temp in self.temps:
                temp.discard()
            while self.unreleased:
                self.unreleased.popitem()[1].release()
        with contextlib.suppress(OSError):
            self.clean(usual, old_locations)
        folder = os.path.dirname(target)
        report.data_files = sorted(os.path.join(folder, name) for name in plan.locations)
        if data_path is not None:
            report.data_files.append(data_path)
        return report

    def old_locations(self, usual: str) -> set[str]:
        """Return what the model now at the target refers to, as far as that matters."""
        if os.path.exists(self.target) and os.path.exists(usual):
            with contextlib.suppress(ModelError):
                return external_locations(self.target)
        return set()

    def file(self, path: str, plan: FilePlan, writer: Writer) -> TempFile:
        """Write a file beside ``path``."""
        try:
            temp = TempFile(path)
            self.temps.append(temp)
            os.ftruncate(temp.fd, plan.size)
            for offset, literal in plan.literals:
                writer.write(temp, offset, literal)
            written: dict[int, int] = {}
            for place in plan.tensors:
                if not place.length:
                    continue
                # A tensor that is used twice is computed once.
                first = written.setdefault(id(place.tensor), place.offset)
                if first != place.offset:
                    writer.copy(temp, place.offset, place.length, temp.fd, first)
                    writer.copied += place.length
                else:
                    writer.tensor(temp, place.offset, place.length, place.tensor)
                    streamed = self.unreleased.pop(id(place.tensor), None)
                    if streamed is not None:
                        streamed.release()
            writer.settle()
            if self.fsync:
                temp.sync()
        except OSError as error:
            raise atomic.os_error(error, path) from error
        return temp

    def second(
        self, first: TempFile, first_plan: FilePlan, plan: FilePlan, writer: Writer
    ) -> TempFile:
        """Write the model again, with another name of the data file in it."""
        temp = TempFile(self.target)
        self.temps.append(temp)
        os.ftruncate(temp.fd, plan.size)
        for offset, literal in plan.literals:
            writer.write(temp, offset, literal)
        for place, there in zip(plan.tensors, first_plan.tensors, strict=True):
            writer.copy(temp, place.offset, place.length, first.fd, there.offset)
        writer.settle()
        if self.fsync:
            temp.sync()
        return temp

    def place(
        self, data: TempFile | None, model: TempFile, second: TempFile | None, fresh: str | None
    ) -> None:
        """Rename everything to its place; see the top of this file."""
        if data is None or self.data_path is None:
            self.move(model, self.target)
            return
        with atomic.folder_lock(self.target):
            if fresh is None or second is None:
                self.move(data, self.data_path)
                self.move(model, self.target)
                return
            self.move(data, fresh)
            try:
                self.move(model, self.target)
            except OSError:
                # After an interrupt the fresh data are left to the next save: it would not do to
                # be interrupted between looking and removing.
                if not atomic.is_file(model.fd, self.target):
                    atomic.remove(fresh)
                raise
            if not atomic.link(fresh, self.data_path):
                copy = TempFile(self.data_path)
                self.temps.append(copy)
                with Writer(1, 0, None) as writer:
                    writer.copy(copy, 0, os.fstat(data.fd).st_size, data.fd, 0)
                if self.fsync:
                    copy.sync()
                self.move(copy, self.data_path)
            elif self.fsync:
                atomic.sync_folder(self.target)
            self.move(second, self.target)
            atomic.remove(fresh)

    def move(self, temp: TempFile, path: str) -> None:
        temp.move(path)
        if self.fsync:
            atomic.sync_folder(path)

    def clean(self, usual: str, old_locations: set[str]) -> None:
        """Remove what is left of dead processes, and data that nobody needs any more."""
        needed = set(self.plan.locations)
        if self.data_path is not None:
            needed.add(os.path.basename(self.data_path))
        for path in {self.target, usual, self.data_path or usual}:
            atomic.remove_leftovers(path)

        def is_needed(path: str) -> bool:
            return os.path.basename(path) in needed or bool(_other_users(path, self.target))

        for path in {usual, self.data_path or usual}:
            atomic.remove_fresh_leftovers(path, is_needed)
        name = os.path.basename(usual)
        owned = name in old_locations or any(
            atomic.is_fresh_name(location, name) for location in old_locations
        )
        if owned and not is_needed(usual):
            atomic.remove(usual)
