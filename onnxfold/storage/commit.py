"""Putting a model's files in place: streamed, and either wholly or not at all.

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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxfold.errors import ModelError
from onnxfold.storage import atomic
from onnxfold.storage.atomic import TempFile
from onnxfold.storage.layout import FilePlan, Plan
from onnxfold.storage.load import external_locations
from onnxfold.storage.mapped import about_to_replace
from onnxfold.storage.sources import Sources
from onnxfold.storage.writer import Writer


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
        plan: Plan,
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
        self._unreleased: dict[int, Any] = {id(tensor): tensor for tensor in streamed}

    def run(self, threads: int, progress: Callable[[int, int], None] | None) -> SaveReport:
        """Write the files and put them in place.

        Raises:
            OSError: Among others when the disk is full; the target is as it was.
        """
        plan, target, data_path = self._plan, self._target, self._data_path
        usual = target + ".data"
        old_locations = self._old_locations(usual)
        two_steps = data_path is not None and os.path.exists(target) and os.path.exists(data_path)
        fresh = atomic.fresh_name(data_path) if data_path is not None and two_steps else None
        data_name = os.path.basename(data_path) if data_path else ""
        model_plan = plan.model(os.path.basename(fresh) if fresh else data_name)
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
                second = None
                if fresh is not None:
                    second = self._second(model, model_plan, plan.model(data_name), writer)
                report = SaveReport(
                    target,
                    bytes_total=sum(sizes),
                    bytes_computed=writer.computed,
                    bytes_copied=writer.copied,
                    bytes_shared=plan.shared,
                )
            self._sources.check_unchanged()
            self._place(data, model, second, fresh)
        except Exception:
            self._sources.check_unchanged()  # that may be why
            raise
        finally:
            for temp in self._temps:
                temp.discard()
            while self._unreleased:
                self._unreleased.popitem()[1].release()
        with contextlib.suppress(OSError):
            self._clean(usual, old_locations)
        folder = os.path.dirname(target)
        report.data_files = sorted(os.path.join(folder, name) for name in plan.locations)
        if data_path is not None:
            report.data_files.append(data_path)
        return report

    def _old_locations(self, usual: str) -> set[str]:
        """Return what the model now at the target refers to, as far as that matters."""
        if os.path.exists(self._target) and os.path.exists(usual):
            with contextlib.suppress(ModelError):
                return external_locations(self._target)
        return set()

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

    def _second(
        self, first: TempFile, first_plan: FilePlan, plan: FilePlan, writer: Writer
    ) -> TempFile:
        """Write the model again, with another name of the data file in it."""
        temp = self._temporary(self._target)
        os.ftruncate(temp.fd, plan.size)
        for offset, literal in plan.literals:
            writer.write(temp, offset, literal)
        for place, there in zip(plan.tensors, first_plan.tensors, strict=True):
            writer.copy(temp, place.offset, place.length, first.fd, there.offset)
        writer.settle()
        if self._fsync:
            temp.sync()
        return temp

    def _place(
        self, data: TempFile | None, model: TempFile, second: TempFile | None, fresh: str | None
    ) -> None:
        """Rename everything to its place; see the top of this file."""
        if data is None or self._data_path is None:
            self._move(model, self._target)
            return
        with atomic.folder_lock(self._target):
            if fresh is None or second is None:
                self._move(data, self._data_path)
                self._move(model, self._target)
                return
            self._move(data, fresh)
            try:
                self._move(model, self._target)
            except OSError:
                # After an interrupt the fresh data are left to the next save: it would not do to
                # be interrupted between looking and removing.
                if not atomic.is_file(model.fd, self._target):
                    atomic.remove(fresh)
                raise
            about_to_replace(self._data_path)
            if not atomic.link(fresh, self._data_path):
                copy = self._temporary(self._data_path)
                with Writer(1, 0, None) as writer:
                    writer.copy(copy, 0, os.fstat(data.fd).st_size, data.fd, 0)
                if self._fsync:
                    copy.sync()
                self._move(copy, self._data_path)
            elif self._fsync:
                atomic.sync_folder(self._target)
            self._move(second, self._target)
            atomic.remove(fresh)

    def _move(self, temp: TempFile, path: str) -> None:
        about_to_replace(path)
        temp.move(path)
        if self._fsync:
            atomic.sync_folder(path)

    def _clean(self, usual: str, old_locations: set[str]) -> None:
        """Remove what is left of dead processes, and data that nobody needs any more."""
        needed = set(self._plan.locations)
        if self._data_path is not None:
            needed.add(os.path.basename(self._data_path))
        for path in {self._target, usual, self._data_path or usual}:
            atomic.remove_leftovers(path)

        def is_needed(path: str) -> bool:
            return (
                os.path.basename(path) in needed
                or self._sources.needs(path)
                or bool(other_users(path, self._target))
            )

        for path in {usual, self._data_path or usual}:
            atomic.remove_fresh_leftovers(path, is_needed)
        name = os.path.basename(usual)
        owned = name in old_locations or any(
            atomic.is_fresh_name(location, name) for location in old_locations
        )
        if owned and not is_needed(usual):
            atomic.remove(usual)
