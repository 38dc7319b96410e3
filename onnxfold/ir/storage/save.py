"""Writing models: where the files go, and putting them in place: either wholly or not at all.

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
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.api.signatures import Positive, checked
from onnxfold.ir.onnx_ir_private import is_a
from onnxfold.ir.storage.layout import FilePlan, SavePlan, planned, sharer
from onnxfold.ir.storage.load import FILES_KEY, external_locations
from onnxfold.ir.storage.tensors import (
    MappedFile,
    ViewTensor,
    remove_file,
    replace_file,
    span_of,
    tensors_of,
)
from onnxfold.ir.storage.writer import Writer, write_plan
from onnxfold.support import files, system
from onnxfold.support.errors import ModelError, OnnxFoldError, UsageError, about
from onnxfold.support.files import NewFile
from onnxfold.support.forks import cached_property

# Data up to this size (bytes) are copied rather than linked: onnx does not read a file that has two
# names, should the process be killed before the temporary one is removed.
_COPIED = 64 << 20


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
    sources = Sources(model, target, tensors_of(model) if plan is None else plan.placed)
    sources.check_target()
    forced = external_data if isinstance(external_data, str) else None
    locks = {target}
    if share_weights and external_data is False:
        raise UsageError("weights can be shared only with external data", file=target)
    if forced is not None:
        if forced in ("", ".", "..") or os.path.basename(forced) != forced or "\0" in forced:
            reason = f"data file {forced!r} must be a plain file name: it lies beside the model"
            raise UsageError(reason, file=target)
        if os.path.join(os.path.dirname(target), forced) == target:
            raise UsageError("the data file cannot have the name of the model", file=target)
        # Processes that give a data file another name than the model's could give it the same name.
        locks.add(os.path.join(os.path.dirname(target), forced))
    try:
        if plan is None or external_data is not None or share_weights:
            share = sharer(os.path.dirname(target), target) if share_weights else None
            with about(target):
                plan = planned(model, external_data, share)
        with contextlib.ExitStack() as stack:
            found = [*map(stack.enter_context, map(files.locked, sorted(locks)))]
            # First: the disk may be full of it, or the name of the data file be taken.
            commit = Commit(target, sources, fsync=fsync, killed=any(found))
            data_path = _data_path(plan, target, forced, sources)
            folder = os.path.realpath(os.path.dirname(name) or ".")
            if (data_path or plan.locations) and folder != os.path.dirname(target):
                reason = (
                    f"is a symbolic link to {target!r}: a model with external data cannot be read "
                    "through a link from another folder; give the real path"
                )
                raise UsageError(reason, file=name)
            size = commit.run(plan, data_path, threads, progress, check)
    except Exception as error:
        sources.check_unchanged()  # that may be why
        if isinstance(error, OSError) and not isinstance(error, OnnxFoldError):
            raise files.os_error(error, target) from error
        raise
    return SaveReport(size, plan.shared)


def check_destination(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """See that a loaded model may be saved to ``path``, as far as is known before it is changed."""
    Sources(model, real_target(os.fsdecode(os.fspath(path)))).check_target()


def real_target(path: str) -> str:
    """Return the absolute path of the file to write, links followed."""
    files.check_path(path)
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


def _data_path(plan: SavePlan, target: str, forced: str | None, sources: Sources) -> str | None:
    """Return the path of the data file, or None if all tensors are in the model file."""
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


class Sources:
    """The model file and the data files of a model about to be written to ``target``.

    The model file may be replaced, and its data files together with it. Otherwise a data file may
    hold weights of another model. Files are compared by inode and by name: links, and file systems
    that ignore case, give a file several names. ``tensors`` of the model may be in other files than
    those it was loaded from.
    """

    def __init__(
        self, model: ir.Model, target: str, tensors: Iterable[ir.TensorProtocol] = ()
    ) -> None:
        self._target = target
        self._loaded: tuple[MappedFile, ...] = model.meta.get(FILES_KEY, ())
        self._all = set(self._loaded)
        self._data = set(self._loaded[1:])
        for tensor in tensors:
            in_model = is_a(tensor, ViewTensor)
            if (in_model or is_a(tensor, ir.ExternalTensor)) and (span := span_of(tensor)):
                self._all.add(span.file)
                if not in_model:
                    self._data.add(span.file)

    @cached_property
    def replaced(self) -> set[str]:
        """The data files of the model at the target; must be read before it is replaced."""
        with contextlib.suppress(ModelError):
            return external_locations(self._target)
        return set()

    def check_unchanged(self) -> None:
        """Check that no other program has changed the files since they were read."""
        for file in self._all:
            file.check()

    def include(self, path: str) -> bool:
        """Return whether ``path`` is one of the files."""
        return _holds(self._all, path)

    def check_target(self) -> None:
        """Check that the target is no data file of the source."""
        if _holds(self._data, self._target):
            reason = f"holds weights of {self._name!r}; give another path for the model"
            raise UsageError(reason, file=self._target)

    def check_data(self, path: str) -> None:
        """Check that ``path`` is neither the source nor a data file of another model."""
        if _holds(self._loaded[:1], path):
            raise UsageError("is the model itself; give another name for the data file", file=path)
        if user := self.user(path):
            reason = f"holds weights of {user!r}; give another name for the data file"
            raise UsageError(reason, file=path)

    def user(self, path: str) -> str | None:
        """Return a remaining model that refers to the data file: the source, or one beside it."""
        data = self._data
        stays = self._loaded and os.path.realpath(self._loaded[0].path) != self._target
        if not stays:
            # The model of a tensor not loaded by `load` is unknown.
            data = data.difference(self._loaded)
        if _holds(data, path) and (stays or os.path.basename(path) not in self.replaced):
            return self._name
        return other_user(path, self._target)

    @property
    def _name(self) -> str:
        return os.path.basename(self._loaded[0].path) if self._loaded else "the source"


def other_user(data_path: str, target: str) -> str | None:
    """Return a model in the folder, other than ``target``, that refers to the data file: what has
    the usual suffix, and what may be a copy of a model, such as ``NAME.onnx.bak`` or ``NAME.old``.
    """
    folder, name = os.path.split(data_path)
    stem = re.escape(os.path.splitext(os.path.basename(target))[0])
    models = re.compile(rf".*\.onnx|[^.].*\.onnx.*|{stem}\..*", re.DOTALL | re.IGNORECASE)
    if os.path.lexists(data_path):
        with os.scandir(folder) as entries:
            for entry in entries:
                is_other = entry.path != target and not entry.name.endswith("data")
                if is_other and models.fullmatch(entry.name) and entry.is_file():
                    with contextlib.suppress(ModelError):
                        if name in external_locations(entry.path):
                            return entry.name
    return None


def _holds(files: Collection[MappedFile], path: str) -> bool:
    """Return whether ``path`` is one of the files, by any name."""
    if not files:
        return False
    try:
        status = os.stat(path)
    except OSError:
        return False
    same = (status.st_dev, status.st_ino)
    return any(file.key[:2] == same or os.path.realpath(file.path) == path for file in files)


class Commit:
    """Writes the files of a model and puts them in place; the target's lock must be held.

    If an earlier save to the target was killed, what it left is removed first.
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
        self._own = set(filter(own.fullmatch, os.listdir(folder)))
        if self._own:
            self._remove_unused(n for n in self._own if killed or n.startswith(temporary))

    def run(
        self,
        plan: SavePlan,
        data_path: str | None,
        threads: int,
        progress: Callable[[int, int], None] | None,
        check: Callable[[str], None] | None,
    ) -> int:
        """Write the files and put them in place; return their length in bytes. See `save`."""
        name = os.path.basename(data_path or "")
        may_replace = self._own or os.path.lexists(data_path or "")
        replaced = self._sources.replaced if may_replace else set()
        path = files.temporary_path(self._target, "data") if plan.data is not None else ""
        plans: list[tuple[FilePlan, str, str | None]] = []
        if plan.data is not None and data_path is not None:
            plans.append((plan.data, data_path, path))
            if name in replaced or check is not None:  # refers to the data by their temporary name
                plans.append((plan.model(os.path.basename(path)), self._target, None))
        plans.append((plan.model(name), self._target, None))
        total = 0
        if progress is not None:
            total += sum(len(literal) for file, _, _ in plans for _, literal in file.literals)
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
                        system.sync_file(new.fd)
                    new.close()
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
                replace_file(new.path, path, self._target)
                if self._fsync:
                    system.sync_folder(os.path.dirname(path))
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
            system.sync_path(data.path)

    def _remove_unused(self, names: Iterable[str]) -> None:
        """Remove data files that no model refers to: the target, a source, or one beside them."""
        paths = [os.path.join(os.path.dirname(self._target), name) for name in names]
        with contextlib.suppress(OSError, ModelError):  # of a target that cannot be read
            for path in filter(os.path.isfile, paths):
                there = os.path.exists(self._target)
                named = external_locations(self._target) if there else set()
                if os.path.basename(path) not in named and self._sources.user(path) is None:
                    remove_file(path, self._target)
