"""Atomic writing of models: at any time, the target is the old model or the complete new one.

First, all files are written under temporary names and, with ``fsync``, synced. The commit is the
rename of the model over its target. The data file is renamed just before the commit, unless the old
model uses its final name.

If the old model refers to a data file with the same name, one step would have to rename both files,
which is impossible. The save then has three steps:

1. A model that refers to the data by their temporary name is renamed over the target. This is the
   commit.
2. The data have a second temporary name, which is renamed to the final name.
3. A model that refers to the final name is renamed over the target.

At any time, the model at the target refers to its own data. A save also removes the data files of
the replaced model to which no other model refers. If a save was killed, the next save to the same
target removes the remaining files.
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

# A data file of up to this many bytes is copied to get a second name. A larger one is linked if the
# file system supports links. Links remain if the process is killed, but onnx does not read a file
# with several hard links.
_MAX_COPIED_BYTES = 64 << 20


@dataclass(frozen=True)
class SaveReport:
    """The result of a save.

    Attributes:
        bytes_total: Bytes of the .onnx file and the data file, if any.
        bytes_shared: Bytes of the tensors that remain in existing files.
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
    """Write ``model`` to ``path``. The memory use does not grow with the size of the tensors.

    The model may have been loaded from the same path. It remains usable after the save. At any
    time, ``path`` refers to the old model or to the complete new one.

    Args:
        model: The model, which is not changed.
        path: The path of the file to write; symbolic links are followed.
        external_data: False for a single file, True for a data file ``NAME.onnx.data`` in the same
            folder, or the name of the data file. None selects the layout of the source, and
            external data above 2 GiB.
        share_weights: Whether to refer to the existing files of tensors instead of writing the
            tensors. The files must be in the folder of ``path`` or its subfolders; other tensors
            are written. This implies external data.
        fsync: Whether to wait until the files are on the disk before they replace the old ones.
        threads: The maximum number of threads that compute and write.
        progress: Called in the calling thread with the number of written bytes and the number of
            bytes to write.
        plan: The result of `planned` for the unchanged model. It is used if neither
            ``external_data`` nor ``share_weights`` selects a layout.
        check: Called with the path of the written model before it replaces the old one. If the
            function raises an exception, all existing files remain unchanged.

    Raises:
        UsageError: The arguments conflict, the path cannot be written, a file that is in use would
            be replaced, or a single file would exceed 2 GiB.
        ModelError: The model cannot be serialized, or a file of its source was changed.
        OnnxFoldError: The files cannot be written, for example because the disk is full.
    """
    name = os.fsdecode(os.fspath(path))
    target = real_target(name)
    sources = Sources(model, target, tensors_of(model) if plan is None else plan.raw_tensors)
    sources.check_target()
    data_name = external_data if isinstance(external_data, str) else None
    locks = {target}
    if share_weights and external_data is False:
        raise UsageError("weights can be shared only with external data", file=target)
    if data_name is not None:
        is_name = data_name not in ("", ".", "..") and os.path.basename(data_name) == data_name
        if not is_name or "\0" in data_name:
            reason = f"data file {data_name!r} must be a plain file name in the model's folder"
            raise UsageError(reason, file=target)
        if os.path.join(os.path.dirname(target), data_name) == target:
            raise UsageError("the data file cannot have the name of the model", file=target)
        # another process may select the same name for the data of another model
        locks.add(os.path.join(os.path.dirname(target), data_name))
    try:
        if plan is None or external_data is not None or share_weights:
            share = sharer(os.path.dirname(target), target) if share_weights else None
            with about(target):
                plan = planned(model, external_data, share)
        with contextlib.ExitStack() as stack:
            were_killed = [stack.enter_context(files.locked(path)) for path in sorted(locks)]
            # The commit starts by removing the files of a killed save. They may fill the disk, or
            # one of them may have the name of the data file.
            commit = Commit(target, sources, fsync=fsync, killed=any(were_killed))
            data_path = _data_path(plan, target, data_name, sources)
            folder = os.path.realpath(os.path.dirname(name) or ".")
            if (data_path or plan.locations) and folder != os.path.dirname(target):
                reason = (
                    f"is a symbolic link to {target!r}: a model with external data cannot be read "
                    "through a link in another folder; use the real path"
                )
                raise UsageError(reason, file=name)
            size = commit.run(plan, data_path, threads, progress, check)
    except Exception as error:
        sources.check_unchanged()  # a change may be the cause of the error
        if isinstance(error, OSError) and not isinstance(error, OnnxFoldError):
            raise files.os_error(error, target) from error
        raise
    return SaveReport(size, plan.shared)


def check_destination(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Check that a loaded model may be saved to ``path``, before the model is changed.

    Raises:
        UsageError: The path cannot be written, or is a data file from which the model was loaded.
    """
    Sources(model, real_target(os.fsdecode(os.fspath(path)))).check_target()


def real_target(path: str) -> str:
    """Return the absolute path of the file to write, with symbolic links resolved.

    Raises:
        UsageError: The path exists and is not a regular file, or its folder does not exist.
    """
    files.check_path(path)
    real = os.path.realpath(path)
    _check_replaceable(path)
    if not os.path.isdir(os.path.dirname(real)):
        raise UsageError("cannot be written: its folder does not exist", file=path)
    return real


def _check_replaceable(path: str) -> None:
    """Check that ``path`` does not exist, or is a regular file.

    Raises:
        UsageError: The path is a folder or a special file.
    """
    if os.path.isdir(path):
        raise UsageError("cannot be written: it is a folder", file=path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError("cannot be written: it is not a regular file", file=path)


def _data_path(plan: SavePlan, target: str, name: str | None, sources: Sources) -> str | None:
    """Return the path of the data file to write, or None if there is none.

    ``name`` is the selected file name. Otherwise, the name is that of the target with ``.data``. It
    contains a number if a shared file has this name.

    Raises:
        UsageError: The path cannot be written, or the file is in use.
    """
    if plan.data is None:
        return None
    folder = os.path.dirname(target)
    shared = {os.path.join(folder, location) for location in plan.locations}
    path = os.path.join(folder, name or os.path.basename(target) + ".data")
    if path in shared:
        if name is not None:
            reason = (
                f"{name!r} contains weights to be shared; select another name for the data file"
            )
            raise UsageError(reason, file=target)
        number = 1
        while os.path.lexists(path):
            path = os.path.join(folder, f"{os.path.basename(target)}.{number}.data")
            number += 1
    if not files.is_text(os.path.basename(path)):
        reason = f"the name of the data file {os.path.basename(path)!r} is not UTF-8 text"
        raise UsageError(f"{reason}; select another name for the data file", file=target)
    _check_replaceable(path)
    sources.check_data(path)
    return path


class Sources:
    """The source files of a model that will be written to ``target``: .onnx files and data files.

    A save may replace the source model together with its data files. It must not replace a data
    file of a model that remains. Files are compared by inode and by path. A file may have several
    paths: links, or names on a case-insensitive file system. ``tensors`` of the model may also be
    in files from which the model was not loaded.
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
        """The locations of the data files of the old model at the target.

        They are read before the model is replaced. There are none if no model can be read.
        """
        with contextlib.suppress(ModelError):
            return external_locations(self._target)
        return set()

    def check_unchanged(self) -> None:
        """Check that no other program changed the files since they were mapped.

        Raises:
            ModelError: A file was changed.
        """
        for file in self._all:
            file.check()

    def include(self, path: str) -> bool:
        """Return whether ``path`` is one of the source files."""
        return _includes(self._all, path)

    def check_target(self) -> None:
        """Check that the target is not a data file of the source.

        Raises:
            UsageError: The target is a data file of the source.
        """
        if _includes(self._data, self._target):
            reason = f"contains weights of {self._name!r}; select another path for the model"
            raise UsageError(reason, file=self._target)

    def check_data(self, path: str) -> None:
        """Check that ``path`` is neither the source model nor a data file of a remaining model.

        Raises:
            UsageError: The file is in use.
        """
        remedy = "select another name for the data file"
        if _includes(self._loaded[:1], path):
            raise UsageError(f"is the model itself; {remedy}", file=path)
        if user := self.user(path):
            raise UsageError(f"contains weights of {user!r}; {remedy}", file=path)

    def user(self, path: str) -> str | None:
        """Return the name of a remaining model that refers to the data file ``path``, or None.

        This is the source model, unless the save replaces it, or another model in the folder.
        """
        data = self._data
        is_kept = self._loaded and os.path.realpath(self._loaded[0].path) != self._target
        if not is_kept:
            # only a data file from which `load` did not load the model may belong to another model
            data = data.difference(self._loaded)
        if _includes(data, path) and (is_kept or os.path.basename(path) not in self.replaced):
            return self._name
        return other_user(path, self._target)

    @property
    def _name(self) -> str:
        return os.path.basename(self._loaded[0].path) if self._loaded else "the source"


def other_user(data_path: str, target: str) -> str | None:
    """Return the name of a model in the folder of the data file that refers to this file, or None.

    The model at ``target`` is ignored. Models are files with the suffix ``.onnx``, and files that
    may be copies of a model, such as ``NAME.onnx.bak`` or ``NAME.old``. Files with names that end
    with ``data`` are not models.
    """
    folder, name = os.path.split(data_path)
    base = re.escape(os.path.splitext(os.path.basename(target))[0])
    model_name = re.compile(rf".*\.onnx|[^.].*\.onnx.*|{base}\..*", re.DOTALL | re.IGNORECASE)
    if os.path.lexists(data_path):
        with os.scandir(folder) as entries:
            for entry in entries:
                is_other = entry.path != target and not entry.name.endswith("data")
                if is_other and model_name.fullmatch(entry.name) and entry.is_file():
                    with contextlib.suppress(ModelError):
                        if name in external_locations(entry.path):
                            return entry.name
    return None


def _includes(files: Collection[MappedFile], path: str) -> bool:
    """Return whether ``path`` exists and is any path of one of the files."""
    if not files:
        return False
    try:
        status = os.stat(path)
    except OSError:
        return False
    identity = (status.st_dev, status.st_ino)
    return any(file.key[:2] == identity or os.path.realpath(file.path) == path for file in files)


class Commit:
    """A transaction that writes the files of a model and renames them to their final names.

    The caller holds the lock of the target. The remaining files of earlier saves to the target that
    were killed are removed first. ``killed`` is whether a save of these files may have been killed.
    """

    def __init__(self, target: str, sources: Sources, *, fsync: bool, killed: bool) -> None:
        self._target = target
        self._sources = sources
        self._fsync = fsync
        folder, name = os.path.split(target)
        temporary = os.path.basename(files.prefix(target))
        own_name = re.compile(
            rf"{re.escape(name)}\.(\d+\.)?data|{re.escape(temporary)}\w{{8}}\.data", re.DOTALL
        )
        # the existing files with names of data files of saves to this target
        self._own_data = set(filter(own_name.fullmatch, os.listdir(folder)))
        if self._own_data:
            self._remove_unused(n for n in self._own_data if killed or n.startswith(temporary))

    def run(
        self,
        plan: SavePlan,
        data_path: str | None,
        threads: int,
        progress: Callable[[int, int], None] | None,
        check: Callable[[str], None] | None,
    ) -> int:
        """Write the files, rename them, and return their total length in bytes; see `save`."""
        name = os.path.basename(data_path or "")
        may_replace = self._own_data or os.path.lexists(data_path or "")
        replaced = self._sources.replaced if may_replace else set()
        temporary_data = files.temporary_path(self._target, "data") if plan.data is not None else ""
        temporary_name = os.path.basename(temporary_data)
        plans: list[tuple[FilePlan, str, str | None]] = []
        if plan.data is not None and data_path is not None:
            plans.append((plan.data, data_path, temporary_data))
            if name in replaced or check is not None:
                # a model that refers to the data by their temporary name
                plans.append((plan.model(temporary_name), self._target, None))
        plans.append((plan.model(name), self._target, None))
        total = 0
        if progress is not None:
            total += sum(len(literal) for file, _, _ in plans for _, literal in file.literals)
            total += sum(hole.length for file, _, _ in plans for hole in file.tensors)
        writer = Writer(threads, total, progress)
        renames: list[tuple[NewFile, str]] = []
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as uninterrupted:
            # The thread starts here: a signal during its start would prevent waiting for it.
            uninterrupted.submit(int).result()
            for file, destination, temporary in plans:
                try:
                    new_file = stack.enter_context(files.new_file(destination, temporary))
                    write_plan(new_file.fd, file, writer, uninterrupted if self._fsync else None)
                    if self._fsync:
                        system.sync_file(new_file.fd)
                    new_file.close()
                except OSError as error:
                    raise files.os_error(error, destination) from error
                renames.append((new_file, destination))
            if check is not None:  # the data still have their temporary name
                check(renames[-2 if len(renames) == 3 else -1][0].path)
            if name not in replaced:
                del renames[1:-1]  # the model with the temporary name was only for the check
            self._sources.check_unchanged()
            unused = {temporary_name, name, *self._own_data.intersection(replaced)}
            used = {name, *plan.locations}
            # Signals interrupt only the main thread. The end of the context waits for this other
            # thread.
            uninterrupted.submit(self._rename, renames, unused, used).result()
        return plans[-1][0].size + (plan.data.size if plan.data is not None else 0)

    def _rename(self, renames: list[tuple[NewFile, str]], unused: set[str], used: set[str]) -> None:
        """Rename all files to their final names; see the docstring of this module.

        Then, or after an error, the files in ``unused`` are removed if no model refers to them.
        Without an error, the files in ``used`` are kept. After an error, existing files with final
        names that no file was renamed to are kept, too.
        """
        first_path = renames[0][0].path
        pending_names = {os.path.basename(path) for _, path in renames}
        try:
            if len(renames) == 3:
                data, temporary_model, model = renames
                self._link_or_copy(data[0])
                renames = [temporary_model, data, model]
            for new_file, path in renames:
                replace_file(new_file.path, path, self._target)
                pending_names.discard(os.path.basename(path))
                if self._fsync:
                    system.sync_folder(os.path.dirname(path))
            files.remove(first_path)
            unused = unused - used
        finally:
            self._remove_unused(unused - pending_names)

    def _link_or_copy(self, data: NewFile) -> None:
        """Give the data file a second temporary name, which will be renamed to its final name."""
        first_path = data.path
        data.path = files.temporary_path(self._target)
        if os.path.getsize(first_path) > _MAX_COPIED_BYTES:
            with contextlib.suppress(OSError):  # a file system without links
                os.link(first_path, data.path)
                return
        shutil.copy(first_path, data.path)
        if self._fsync:
            system.sync_path(data.path)

    def _remove_unused(self, names: Iterable[str]) -> None:
        """Remove the data files to which neither a model in the folder nor the source refers."""
        paths = [os.path.join(os.path.dirname(self._target), name) for name in names]
        with contextlib.suppress(OSError, ModelError):  # the target may be unreadable
            for path in filter(os.path.isfile, paths):
                exists = os.path.exists(self._target)
                locations = external_locations(self._target) if exists else set()
                if os.path.basename(path) not in locations and self._sources.user(path) is None:
                    remove_file(path, self._target)
