"""Putting a bundle in place: its folder holds the old one or the new one, whatever happens.

No call renames several files at once, but a manifest says where the files of its bundle are:

1. they are written into a fresh folder inside the bundle's,
2. a manifest that refers to that folder takes the place of the old one,
3. the files get their usual names as well (hard links; copies where there are none),
4. a manifest that refers to these takes its place, and the fresh folder goes.

A process that dies before 2 leaves the old bundle, and after it the new one. What else it leaves
is removed by the next one that writes to the folder. Other files there are left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxfold import atomic
from onnxfold.atomic import TempFile
from onnxfold.errors import UsageError
from onnxfold.runtime.bundles.bundle import (
    ENTRY_FILE,
    FOLD_FILE,
    KERNELS,
    MANIFEST,
    STAGED,
    staged_folder,
)
from onnxfold.runtime.bundles.manifest import Manifest
from onnxfold.storage.commit import other_users
from onnxfold.storage.sources import Sources
from onnxfold.storage.tensors import tensors_of
from onnxfold.system import sync

_MODELS = (ENTRY_FILE, FOLD_FILE)
_DATA = tuple(f"{model}.data" for model in _MODELS)
_KERNEL_NAME = re.compile(r"[0-9a-f]{16,}\.")


def check_source(model: ir.Model, folder: Path) -> None:
    """See that a bundle does not take the place of the model that it is made of.

    Raises:
        UsageError: It would.
    """
    sources = Sources(model, tensors_of(model), os.path.realpath(folder / MANIFEST))
    for name in (*_MODELS, *_DATA):
        try:
            sources.check_data(os.path.realpath(folder / name))
        except UsageError:
            reason = "belongs to the model that is split; write the bundle into another folder"
            raise UsageError(reason, file=folder / name) from None


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A folder for the files of a bundle; it goes at the end unless the manifest refers to it.

    Args:
        folder: The bundle's own folder.

    Raises:
        UsageError: The bundle would take the place of something else.
        OSError: The folder cannot be made.
    """
    for name in (MANIFEST, *_MODELS, *_DATA):
        if (folder / name).is_dir():
            raise UsageError("cannot be written: it is a folder", file=folder / name)
    for name in _MODELS:
        users = _users_of_data(folder, name)
        if users:
            raise UsageError(f"holds the data of {users[0]!r}", file=folder / f"{name}.data")
    _remove_leftovers(folder)
    lock = TempFile(str(folder / STAGED))
    try:
        lock.create()
        # as long as the lock is held, the folder that has its digits is in use
        path = folder / os.path.basename(lock.path or "").removeprefix(".").removesuffix(".tmp")
        path.mkdir()
        yield path
    finally:
        lock.discard()
        _remove_leftovers(folder)


def put_in_place(staged: Path, manifest: Manifest, *, fsync: bool) -> None:
    """Make what is in a `fresh_folder` the bundle.

    Raises:
        OSError: Among others when the disk is full; the old bundle or the new one is there.
    """
    folder = staged.parent
    target = str(folder / MANIFEST)
    files = [p.relative_to(staged) for p in staged.rglob("*") if p.is_file()]
    if fsync:
        for path in (*(staged / file for file in files), staged, folder):
            _sync(path)
    document = manifest.to_dict()
    first, second = TempFile(target), TempFile(target)
    try:
        _write(first, {**document, "folder": staged.name}, fsync)
        _write(second, document, fsync)
        with atomic.folder_lock(target):
            replaces = os.path.exists(target)
            first.move(target)
            for file in files:
                _name_also(staged / file, folder / file)
            if fsync:
                _sync(folder)
            second.move(target)
            if replaces:
                _remove_old(folder, manifest, files)
            if fsync:
                _sync(folder)
    finally:
        first.discard()
        second.discard()


def _remove_old(folder: Path, manifest: Manifest, files: list[Path]) -> None:
    """Remove what the bundle before had, and this one has not."""
    for name in _MODELS:
        if Path(name) not in files:
            atomic.remove(str(folder / name))
        if Path(f"{name}.data") not in files and not _users_of_data(folder, name):
            atomic.remove(str(folder / f"{name}.data"))
    named = {name for kernel in manifest.kernels for name in kernel.files}
    for path in (folder / KERNELS).glob("*"):
        if _KERNEL_NAME.match(path.name) and f"{KERNELS}/{path.name}" not in named:
            atomic.remove(str(path))


def _users_of_data(folder: Path, name: str) -> list[str]:
    """Other models that have their data in the file that is one's of the bundle."""
    path = str(folder / name)
    data = f"{path}.data"
    return other_users(data, path) if os.path.exists(data) else []


def _remove_leftovers(folder: Path) -> None:
    """Remove what dead processes left, and what is no longer needed."""
    for name in (STAGED, MANIFEST, *_MODELS, *_DATA):
        atomic.remove_leftovers(str(folder / name))
    needed = staged_folder(folder / MANIFEST)
    for path in folder.glob(f"{STAGED}.onnxfold-????????"):
        in_use = path == needed or (folder / f".{path.name}.tmp").exists()
        if not in_use and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _write(temp: TempFile, document: Mapping[str, Any], fsync: bool) -> None:
    temp.create()
    with open(temp.fd, "w", encoding="utf-8", closefd=False) as file:
        file.write(json.dumps(document, indent=1) + "\n")
    if fsync:
        temp.sync()


def _name_also(source: Path, target: Path) -> None:
    """Give a file another name, in place of what has it."""
    target.parent.mkdir(exist_ok=True)
    if not atomic.link(str(source), str(target)):
        temp = TempFile(str(target))
        try:
            temp.create()
            with open(source, "rb") as file, open(temp.fd, "wb", closefd=False) as copy:
                shutil.copyfileobj(file, copy)
            temp.sync()
            temp.move(str(target))
        finally:
            temp.discard()


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir():
        atomic.sync_folder(str(path / "name"))
        return
    with open(path, "rb+") as file:  # Windows syncs what may be written
        sync(file.fileno())
