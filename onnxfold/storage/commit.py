"""Putting a model's files in place: streamed, and either wholly or not at all.

In one file: written beside the target, renamed over it.

With external data there are two files, and no call renames two files at once. Where there is no old
model, or no old data file, the data are put in place first and the model last. Where a model with
its data is replaced:

1. the new data get a fresh durable name,
2. a model that refers to that name is renamed over the target,
3. the data get their usual name as well (a hard link; a copy where there are none, or it is cheap:
   onnx does not read data with several names),
4. a model that refers to the usual name is renamed over the target,
5. the fresh name is removed.

So at any moment the model at the target refers to the data it was written with; between 3 and 5
they have two names. A process that dies in between leaves a fresh name behind: if the model refers
to it, it is complete, and otherwise the next save to the same target removes it. A reader that
opened the old model before step 2 and opens the data by name after step 3 sees new data: readers
would have to take a lock for that, and they do not. Processes that put files into the same folder
do it one after the other, under a lock, and look there at what the others left.

The data file of the old model is removed when the new model needs none, if it has the usual name
(``NAME.onnx.data``), the old model referred to it, and no other ``.onnx`` file in the folder does.
Likewise a data file that another model in the folder refers to is not overwritten. As long as data
are in place and their model is not yet, or no more, an empty file with a fresh name says so: should
the process die, the next save removes both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxfold import atomic
from onnxfold.atomic import TempFile
from onnxfold.errors import ModelError, UsageError
from onnxfold.storage.layout import FilePlan, SavePlan
from onnxfold.storage.load import external_locations
from onnxfold.storage.mapped import about_to_replace
from onnxfold.storage.sources import Sources
from onnxfold.storage.writer import Writer
from onnxfold.system import open_to_read

_COPIED = 64 << 20  # bytes of data that are rather copied than have two names for a moment


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


def sweep(target: str, data_path: str | None, sources: Sources) -> None:
    """Remove what dead processes left of a save to ``target``, and what it needs no more.

    Args:
        target: The model.
        data_path: Its data file, if that has not a name that begins with the model's.
        sources: Files that stay.
    """

    def is_needed(path: str) -> bool:
        return os.path.basename(path) in _locations(target) or _is_needed_elsewhere(
            path, target, sources
        )

    usual = f"{target}.data"
    data = {usual, data_path or usual, *atomic.with_fresh_names(f"{target}.", ".data")}
    with contextlib.suppress(OSError):  # they can stay
        atomic.remove_leftovers(target)
        for path in data:
            atomic.remove_leftovers(path)
            atomic.remove_fresh_leftovers(path, is_needed, about_to_replace)


def _locations(target: str) -> set[str]:
    """What the model that is at the target now refers to."""
    with contextlib.suppress(ModelError):
        return external_locations(target)
    return set()


def _is_needed_elsewhere(path: str, target: str, sources: Sources) -> bool:
    return sources.needs(path) or bool(other_users(path, target))


def _identity(path: str | None) -> tuple[int, ...] | None:
    try:
        status = os.stat(path or "")
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns)


@contextlib.contextmanager
def _opened(temp: TempFile, path: str) -> Iterator[int]:
    """What was moved to ``path``, open: as it is, or again where it had to be closed."""
    if temp.fd >= 0:
        yield temp.fd
        return
    fd = open_to_read(path)
    try:
        yield fd
    finally:
        os.close(fd)


class Commit:
    """Writes the files of a plan and puts them in place.

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
        self._temps: list[TempFile] = []
        self._data_before = _identity(data_path)
        self._unreleased: dict[int, Any] = {id(tensor): tensor for tensor in streamed}

    def run(self, threads: int, progress: Callable[[int, int], None] | None) -> SaveReport:
        """Write the files and put them in place.

        Raises:
            OSError: Among others when the disk is full; the target is as it was.
        """
        plan, target, data_path = self._plan, self._target, self._data_path
        model_plan = plan.model(os.path.basename(data_path) if data_path else "")
        sizes = [model_plan.size, plan.data.size if plan.data else 0]
        total = sum(len(literal) for _, literal in model_plan.literals)
        for file in (model_plan, plan.data):
            total += sum(place.length for place in file.tensors) if file else 0
        try:
            with Writer(threads, total, progress, flush=self._fsync) as writer:
                data = None
                if plan.data is not None and data_path is not None:
                    data = self._file(data_path, plan.data, writer)
                model = self._file(target, model_plan, writer)
                report = SaveReport(
                    target,
                    bytes_total=sum(sizes),
                    bytes_computed=writer.computed,
                    bytes_copied=writer.copied,
                    bytes_shared=plan.shared,
                )
            with atomic.folder_lock(target), ThreadPoolExecutor(1) as uninterrupted:
                self._sources.check_unchanged()
                # Signals interrupt the main thread; leaving the context waits for the other one.
                uninterrupted.submit(self._place, data, model, model_plan).result()
                sweep(target, data_path, self._sources)
        except Exception:
            self._sources.check_unchanged()  # that may be why
            raise
        finally:
            for temp in self._temps:
                temp.discard()
            while self._unreleased:
                self._unreleased.popitem()[1].release()
        folder = os.path.dirname(target)
        report.data_files = sorted(os.path.join(folder, name) for name in plan.locations)
        if data_path is not None:
            report.data_files.append(data_path)
        return report

    def _temporary(self, path: str) -> TempFile:
        temp = TempFile(path)
        self._temps.append(temp)  # first: an interrupt may come at any moment
        return temp.create()

    def _file(self, path: str, plan: FilePlan, writer: Writer) -> TempFile:
        """Write a file beside ``path``."""
        try:
            temp = self._temporary(path)
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
                    streamed = self._unreleased.pop(id(place.tensor), None)
                    if streamed is not None:
                        streamed.release()
            writer.settle()
            if self._fsync:
                temp.sync()
        except OSError as error:
            raise atomic.os_error(error, path) from error
        return temp

    def _place(self, data: TempFile | None, model: TempFile, model_plan: FilePlan) -> None:
        """Rename everything to its place; see the top of this file."""
        target, data_path = self._target, self._data_path
        if data is None or data_path is None:
            if self._drops_data():
                with atomic.marked(self._usual):
                    self._move(model, target)
                    about_to_replace(self._usual)
                    atomic.remove(self._usual)
            else:
                self._move(model, target)
            return
        if _identity(data_path) != self._data_before:
            refuse_if_used(data_path, target)
        if not (os.path.exists(target) and os.path.exists(data_path)):
            with atomic.marked(data_path):
                self._move(data, data_path)
                self._move(model, target)
            return
        fresh = atomic.fresh_name(data_path)
        bridge = self._bridge(model, model_plan, self._plan.model(os.path.basename(fresh)))
        self._move(data, fresh)
        try:
            self._move(bridge, target)
        except OSError:
            # After an interrupt the fresh data are left to the next save: it would not do to
            # be interrupted between looking and removing.
            if not bridge.is_at(target):
                atomic.remove(fresh)
            raise
        about_to_replace(data_path)
        size = os.stat(fresh).st_size
        if size <= _COPIED or not atomic.link(fresh, data_path):
            copy = self._temporary(data_path)
            with _opened(data, fresh) as source, Writer(1, 0, None) as writer:
                writer.copy(copy, 0, size, source, 0)
            if self._fsync:
                copy.sync()
            self._move(copy, data_path)
        elif self._fsync:
            atomic.sync_folder(target)
        self._move(model, target)
        atomic.remove(fresh)

    def _bridge(self, model: TempFile, model_plan: FilePlan, plan: FilePlan) -> TempFile:
        """Write the model once more, with another name of the data file in it."""
        temp = self._temporary(self._target)
        os.ftruncate(temp.fd, plan.size)
        with Writer(1, 0, None) as writer:
            for offset, literal in plan.literals:
                writer.write(temp, offset, literal)
            for place, there in zip(plan.tensors, model_plan.tensors, strict=True):
                writer.copy(temp, place.offset, place.length, model.fd, there.offset)
        if self._fsync:
            temp.sync()
        return temp

    def _move(self, temp: TempFile, path: str) -> None:
        about_to_replace(path)
        temp.move(path)
        if self._fsync:
            atomic.sync_folder(path)

    @property
    def _usual(self) -> str:
        """The usual name of a data file of the target."""
        return self._target + ".data"

    def _drops_data(self) -> bool:
        """Whether the model at the target has data with the usual name that nobody will need."""
        usual = self._usual
        if not os.path.exists(usual) or os.path.basename(usual) in self._plan.locations:
            return False
        name = os.path.basename(usual)
        return any(
            location == name or atomic.is_fresh_name(location, name)
            for location in _locations(self._target)
        ) and not _is_needed_elsewhere(usual, self._target, self._sources)
