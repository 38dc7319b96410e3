"""Putting the files of a model in place: streamed, and either wholly or not at all.

All files are written and synced first, under temporary names. The commit is the rename of the model
over its target. Data that the old model does not refer to are renamed to their place just before.

Where the old model refers to a data file of the same name, no call renames both at once:

1. a model that refers to the data by their temporary name is renamed over the target (the commit),
2. the data, which have another temporary name as well, are renamed to their place by that,
3. a model that refers to the usual name is renamed over the target.

At any moment the model at the target refers to the data that it was written with. Data files that
no model refers to any more are removed: by the save that replaced their model, or, if that was
killed, by the next save to the same target.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from onnxfold import files
from onnxfold.errors import ModelError
from onnxfold.files import NewFile
from onnxfold.storage.layout import FilePlan, SavePlan
from onnxfold.storage.load import external_locations
from onnxfold.storage.mapped import about_to_replace
from onnxfold.storage.sources import Sources
from onnxfold.storage.writer import Writer, is_streamed

# Data up to this size (bytes) are copied rather than linked: onnx does not read a file that has two
# names, should the process be killed before the temporary one is removed.
_COPIED = 64 << 20
_SYNCED_FROM = 16 << 20  # bytes of a tensor
_sync_data = getattr(os, "fdatasync", os.fsync)  # macOS has the latter only


class Commit:
    """Writes the files of a model and puts them in place. The target's lock must be held.

    Args:
        target: The absolute path of the model, links followed.
        sources: The files the model was read from.
        fsync: Wait until the files are on the disk before they are put in place.
        killed: Whether an earlier save to the target was killed: what it left is removed.
    """

    def __init__(self, target: str, sources: Sources, *, fsync: bool, killed: bool) -> None:
        self._target = target
        self._sources = sources
        self._fsync = fsync
        folder, name = os.path.split(target)
        temporary = os.path.basename(files.prefix(target))
        own = re.compile(
            rf"{re.escape(name)}\.(\d+\.)?data|{re.escape(temporary)}\w{{8}}\.data", re.DOTALL
        )
        self._own = {path for path in os.listdir(folder) if own.fullmatch(path)}
        self._remove_unused(n for n in self._own if killed or n.startswith(temporary))

    def run(
        self,
        plan: SavePlan,
        data_path: str | None,
        threads: int,
        progress: Callable[[int, int], None] | None,
        check: Callable[[str], None] | None,
    ) -> int:
        """Write the files and put them in place.

        Args:
            plan: What goes into the files.
            data_path: The absolute path of the data file; None if there is none.
            threads: How many threads compute and write.
            progress: Called with bytes written and bytes to write.
            check: Called with the path of the written model.

        Returns:
            The length of the files, bytes.

        Raises:
            OSError: Among others when the disk is full; the target is as it was.
        """
        name = os.path.basename(data_path or "")
        may_replace = self._own or os.path.lexists(data_path or "")
        replaced = self._sources.replaced if may_replace else set()
        path = files.temporary_path(self._target, "data")
        plans: list[tuple[FilePlan, str, str | None]] = []
        if plan.data is not None and data_path is not None:
            plans.append((plan.data, data_path, path))
            if name in replaced or check is not None:  # refers to the data by their temporary name
                plans.append((plan.model(os.path.basename(path)), self._target, None))
        plans.append((plan.model(name), self._target, None))
        total = sum(len(literal) for file, _, _ in plans for _, literal in file.literals)
        total += sum(place.length for file, _, _ in plans for place in file.tensors)
        writer = Writer(threads, total, progress)
        moves: list[tuple[NewFile, str]] = []
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as uninterrupted:
            # First: a thread that is starting when a signal comes would not be waited for.
            uninterrupted.submit(int).result()
            for file, place, temporary in plans:
                try:
                    new = stack.enter_context(files.new_file(place, temporary))
                    write_plan(new.fd, file, writer, uninterrupted if self._fsync else None)
                    if self._fsync:
                        os.fsync(new.fd)
                except OSError as error:
                    raise files.os_error(error, place) from error
                moves.append((new, place))
            if check is not None:  # the data are still under their temporary name
                check(moves[-2 if len(moves) == 3 else -1][0].path)
            if name not in replaced:
                del moves[1:-1]  # the model that only the check has read
            self._sources.check_unchanged()
            unused = {os.path.basename(path), name, *self._own.intersection(replaced)}
            used = {name, *plan.locations}
            # Signals interrupt the main thread; leaving the context waits for the other one.
            uninterrupted.submit(self._place, moves, unused, used).result()
        return plans[-1][0].size + (plan.data.size if plan.data is not None else 0)

    def _place(self, moves: list[tuple[NewFile, str]], unused: set[str], used: set[str]) -> None:
        """Rename everything to its place; see the top of this file."""
        first = moves[0][0].path
        try:
            if len(moves) == 3:
                data, bridge, model = moves
                self._give_second_name(data[0])
                moves = [bridge, data, model]
            for new, path in moves:
                about_to_replace(path)
                os.replace(new.path, path)
                if self._fsync:
                    files.sync_folder(os.path.dirname(path))
            files.remove(first)
            unused = unused - used
        finally:
            self._remove_unused(unused)

    def _give_second_name(self, data: NewFile) -> None:
        """Have the data under another temporary name too, which is gone at the end."""
        first, data.path = data.path, files.temporary_path(self._target)
        if os.path.getsize(first) > _COPIED:
            with contextlib.suppress(OSError):  # a file system without links
                os.link(first, data.path)
                return
        shutil.copy(first, data.path)
        if self._fsync:
            with open(data.path, "rb") as file:
                os.fsync(file.fileno())

    def _remove_unused(self, names: Iterable[str]) -> None:
        """Remove data files that no model refers to: the target, a source, or one beside them."""
        paths = [os.path.join(os.path.dirname(self._target), name) for name in names]
        with contextlib.suppress(OSError, ModelError):  # of a target that cannot be read
            for path in filter(os.path.isfile, paths):
                there = os.path.exists(self._target)
                named = external_locations(self._target) if there else set()
                if os.path.basename(path) not in named and self._sources.user(path) is None:
                    about_to_replace(path)
                    files.remove(path)


def write_plan(fd: int, plan: FilePlan, writer: Writer, background: Executor | None = None) -> None:
    """Write what a plan says; streamed tensors are released.

    Args:
        fd: The file.
        plan: What to write.
        writer: Writes it.
        background: Has the disk write each large tensor while the next one is computed.

    Raises:
        OSError: Among others when the disk is full.
    """
    os.ftruncate(fd, plan.size)
    for offset, literal in plan.literals:
        writer.write(fd, offset, literal)
    written: dict[int, int] = {}
    syncs: list[Future[None]] = []
    for place in plan.tensors:
        if not place.length:
            continue
        # A tensor that is used twice is computed once.
        first = written.setdefault(id(place.tensor), place.offset)
        if first != place.offset:
            writer.copy(fd, place.offset, place.length, fd, first)
            continue
        try:
            writer.tensor(fd, place.offset, place.length, place.tensor)
        finally:
            if is_streamed(place.tensor):
                place.tensor.release()
        if background is not None and place.length >= _SYNCED_FROM:
            syncs.append(background.submit(_sync_data, fd))
    for sync in syncs:
        sync.result()  # a later sync of the file does not report its error again
