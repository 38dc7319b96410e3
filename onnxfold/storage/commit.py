"""Putting the files of a model in place: streamed, and either wholly or not at all.

All files are written and synced first, under temporary names. The commit is the rename of the model
over its target. Data that the old model does not refer to are renamed to their place just before.

Where the old model refers to a data file of the same name, no call renames both at once:

1. a model that refers to the data by their temporary name is renamed over the target (the commit),
2. the data get their usual name as well,
3. a model that refers to the usual name is renamed over the target, and the temporary name goes.

At any moment the model at the target refers to the data that it was written with. Data files that
no model refers to any more are removed: by the save that replaced their model, or, if that was
killed, by the next save to the same target.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxfold import files
from onnxfold.errors import ModelError, UsageError
from onnxfold.files import NewFile
from onnxfold.storage.layout import FilePlan, SavePlan
from onnxfold.storage.load import external_locations
from onnxfold.storage.mapped import about_to_replace
from onnxfold.storage.sources import Sources
from onnxfold.storage.writer import Writer

# Data up to this size (bytes) are copied rather than linked: onnx does not read a file that has two
# names, should the process be killed before the temporary one is removed.
_COPIED = 64 << 20


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


def refuse_if_used(data_path: str, target: str) -> None:
    """See that no model in the folder, other than ``target``, refers to the data file.

    Raises:
        UsageError: One does.
    """
    if os.path.lexists(data_path) and (users := other_users(data_path, target)):
        raise UsageError(
            f"{os.path.basename(data_path)!r} also holds the data of {users[0]!r}; "
            "give another name for the data file",
            file=target,
        )


def other_users(data_path: str, target: str) -> list[str]:
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


def sweep(target: str, sources: Sources, *, killed: bool) -> None:
    """Remove what killed saves to ``target`` left. Its lock must be held.

    Args:
        target: The model.
        sources: The files of the model that is about to be saved; they stay.
        killed: Whether such a save was killed: then data files with a name that is made of the
            model's are leftovers, too, if no model refers to them.
    """
    folder, name = os.path.split(target)
    files.remove_leftovers(folder, f"{glob.escape(name)}-????????")
    left = glob.glob(f"{glob.escape(_temporary_data(target))}????????.data")
    if killed:
        paths = glob.glob(f"{glob.escape(target)}.*data")
        left += [path for path in paths if re.fullmatch(r"\.(\d+\.)?data", path[len(target) :])]
    _remove_unused(left, target, sources)


def _remove_unused(paths: Iterable[str], target: str, sources: Sources) -> None:
    """Remove data files that neither the target, nor a source, nor another model refers to."""
    for path in filter(os.path.isfile, paths):
        with contextlib.suppress(OSError, ModelError):  # of a target that cannot be read
            if os.path.exists(target) and os.path.basename(path) in external_locations(target):
                continue
            if not (sources.needs(path) or other_users(path, target)):
                about_to_replace(path)
                files.remove(path)


def _temporary_data(target: str) -> str:
    """The beginning of temporary paths of data of a model, by which the model may refer to them."""
    folder, name = os.path.split(files.prefix(target))
    return os.path.join(folder, name[1:].encode(errors="replace").decode())


def _locations(target: str) -> set[str]:
    """What the model at the target refers to."""
    with contextlib.suppress(ModelError):
        return external_locations(target)
    return set()


class Commit:
    """Writes the files of a plan and puts them in place. The lock of the target must be held.

    Args:
        plan: What goes into the files.
        target: The absolute path of the model, links followed.
        data_path: The absolute path of the data file; None if there is none.
        fsync: Wait until the files are on the disk before they are put in place.
        streamed: Tensors that are computed on the way; each is released when it is written, or
            when the commit failed.
        sources: The files the model was read from.
    """

    def __init__(
        self,
        plan: SavePlan,
        target: str,
        data_path: str | None,
        fsync: bool,
        streamed: list[ir.TensorProtocol],
        sources: Sources,
    ) -> None:
        self._plan = plan
        self._sources = sources
        self._target = target
        self._data_path = data_path
        self._fsync = fsync
        self._temporaries = contextlib.ExitStack()
        self._unreleased: dict[int, Any] = {id(tensor): tensor for tensor in streamed}
        data = [data_path or "", *glob.glob(f"{glob.escape(target)}.*data")]
        self._replaced = _locations(target) if any(map(os.path.exists, data)) else set()

    def run(self, threads: int, progress: Callable[[int, int], None] | None) -> SaveReport:
        """Write the files and put them in place.

        Raises:
            OSError: Among others when the disk is full; the target is as it was.
        """
        plan, target, data_path = self._plan, self._target, self._data_path
        name = os.path.basename(data_path or "")
        model_plan = plan.model(name)
        total = sum(len(literal) for _, literal in model_plan.literals)
        for file in (model_plan, plan.data):
            total += sum(place.length for place in file.tensors) if file else 0
        data = bridge = None
        try:
            with self._temporaries, ThreadPoolExecutor(1) as uninterrupted:
                # First: a thread that is starting when a signal comes would not be waited for.
                uninterrupted.submit(int).result()
                writer = Writer(threads, total, progress)
                if plan.data is not None and data_path is not None:
                    path = f"{_temporary_data(target)}{secrets.token_hex(4)}.data"
                    data = self._write(data_path, plan.data, writer, path)
                model = self._write(target, model_plan, writer)
                report = SaveReport(
                    target,
                    bytes_total=model_plan.size + (plan.data.size if plan.data else 0),
                    bytes_computed=writer.computed,
                    bytes_copied=writer.copied,
                    bytes_shared=plan.shared,
                )
                if data is not None and name in self._replaced:
                    bridge_plan = plan.model(os.path.basename(data.path))
                    bridge = self._bridge(model.fd, model_plan, bridge_plan)
                self._sources.check_unchanged()
                # Signals interrupt the main thread; leaving the context waits for the other one.
                uninterrupted.submit(self._place, data, bridge, model).result()
        except Exception:
            self._sources.check_unchanged()  # that may be why
            raise
        finally:
            while self._unreleased:
                self._unreleased.popitem()[1].release()
        folder = os.path.dirname(target)
        report.data_files = sorted(os.path.join(folder, name) for name in plan.locations)
        if data_path is not None:
            report.data_files.append(data_path)
        return report

    def _write(
        self, target: str, plan: FilePlan, writer: Writer, path: str | None = None
    ) -> NewFile:
        """Write a temporary file that is to become ``target``."""
        try:
            new = self._temporaries.enter_context(files.new_file(target, path))
            fd = new.fd
            os.ftruncate(fd, plan.size)
            for offset, literal in plan.literals:
                writer.write(fd, offset, literal)
            written: dict[int, int] = {}
            for place in plan.tensors:
                if not place.length:
                    continue
                # A tensor that is used twice is computed once.
                first = written.setdefault(id(place.tensor), place.offset)
                if first != place.offset:
                    writer.copy(fd, place.offset, place.length, fd, first)
                    writer.copied += place.length
                else:
                    writer.tensor(fd, place.offset, place.length, place.tensor)
                    streamed = self._unreleased.pop(id(place.tensor), None)
                    if streamed is not None:
                        streamed.release()
            self._sync(fd)
        except OSError as error:
            raise files.os_error(error, target) from error
        return new

    def _bridge(self, model: int, model_plan: FilePlan, plan: FilePlan) -> NewFile:
        """Write the model once more, with another name of the data file in it."""
        new = self._temporaries.enter_context(files.new_file(self._target))
        os.ftruncate(new.fd, plan.size)
        writer = Writer(1, 0, None)
        for offset, literal in plan.literals:
            writer.write(new.fd, offset, literal)
        for place, there in zip(plan.tensors, model_plan.tensors, strict=True):
            writer.copy(new.fd, place.offset, place.length, model, there.offset)
        self._sync(new.fd)
        return new

    def _place(self, data: NewFile | None, bridge: NewFile | None, model: NewFile) -> None:
        """Rename everything to its place; see the top of this file."""
        target, data_path = self._target, self._data_path
        folder, name = os.path.dirname(target), os.path.basename(data_path or "")
        own = (os.path.basename(target) + ".data", name)
        start = os.path.basename(_temporary_data(target))
        unused = {n for n in self._replaced | {name} if n in own or n.startswith(start)}
        try:
            if data is not None and data_path is not None:
                if bridge is None:
                    self._move(data.path, data_path)
                else:
                    data.is_kept = True  # the model at the target refers to it from now on
                    self._move(bridge.path, target)
                    self._move(self._second_name(data.path), data_path)
            self._move(model.path, target)
            unused -= {name, *self._plan.locations}
            if data is not None:
                data.is_kept = False
        finally:
            _remove_unused([os.path.join(folder, n) for n in unused], target, self._sources)

    def _second_name(self, data: str) -> str:
        """Give the data another temporary name, which the lock's next holder would remove."""
        path = files.temporary_path(self._target)
        if os.path.getsize(data) > _COPIED:
            with contextlib.suppress(OSError):  # a file system without links
                os.link(data, path)
                return path
        try:
            shutil.copy(data, path)
            with open(path, "rb") as file:
                self._sync(file.fileno())
        except OSError:
            files.remove(path)
            raise
        return path

    def _sync(self, fd: int) -> None:
        if self._fsync:
            os.fsync(fd)

    def _move(self, temporary: str, path: str) -> None:
        about_to_replace(path)
        os.replace(temporary, path)
        if self._fsync:
            files.sync_folder(os.path.dirname(path))
