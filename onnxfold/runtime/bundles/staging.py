"""Putting a bundle in place: its folder holds the old one or the new one, whatever happens.

The files of a bundle are written into a new folder inside the bundle's. The commit is the rename of
a manifest that names this folder and the files. They are moved to their places then; whoever finds
such a manifest after its writer was killed moves the rest. Other files in the folder stay.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxfold import files
from onnxfold.errors import UsageError
from onnxfold.runtime.bundles.bundle import (
    ENTRY_FILE,
    FOLD_FILE,
    KERNELS,
    MANIFEST,
    STAGED,
    staged_document,
)
from onnxfold.runtime.bundles.manifest import Manifest
from onnxfold.storage.sources import Sources, other_user
from onnxfold.storage.tensors import tensors_of

_MODELS = (ENTRY_FILE, FOLD_FILE)
_DATA = tuple(f"{model}.data" for model in _MODELS)
_OWN = re.compile(rf"(entry|runtime_fold)\.onnx(\.data)?|{KERNELS}/[0-9a-f]{{16,}}\..*", re.DOTALL)


def check_source(model: ir.Model, folder: Path) -> None:
    """See that a bundle does not take the place of the model that it is made of.

    Raises:
        UsageError: It would.
    """
    sources = Sources(model, os.path.realpath(folder / MANIFEST), tensors_of(model))
    for name in (*_MODELS, *_DATA):
        if sources.include(os.path.realpath(folder / name)):
            reason = "belongs to the model that is split; write the bundle into another folder"
            raise UsageError(reason, file=folder / name)


@contextlib.contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Make a folder for the files of a bundle; it is removed at the end.

    Args:
        folder: The bundle's own folder, which is locked meanwhile.

    Raises:
        UsageError: The bundle would take the place of something else.
        OSError: The folder cannot be made.
    """
    for name in (MANIFEST, *_MODELS, *_DATA):
        if (folder / name).is_dir():
            raise UsageError("cannot be written: it is a folder", file=folder / name)
    for name in _MODELS:
        data = folder / f"{name}.data"
        if user := other_user(str(data), str(folder / name)):
            raise UsageError(f"holds the data of {user!r}", file=data)
    with files.locked(str(folder / STAGED)):
        _finish(folder, fsync=True)
        path = folder / f"{STAGED}.onnxfold-{secrets.token_hex(4)}"
        try:
            path.mkdir()
            yield path
        finally:
            if staged_document(folder / MANIFEST) is None:
                _remove_staged(folder)


def put_in_place(staged: Path, manifest: Manifest, *, fsync: bool) -> None:
    """Make what is in a `fresh_folder` the bundle.

    Raises:
        OSError: Among others when the disk is full; the old bundle or the new one is there.
    """
    folder = staged.parent
    names = [p.relative_to(staged).as_posix() for p in staged.rglob("*") if p.is_file()]
    if fsync:
        for name in names:
            with open(staged / name, "rb") as file:
                os.fsync(file.fileno())
        for parent in {(staged / name).parent for name in names} | {staged, folder}:
            files.sync_folder(str(parent))
    _write(folder, {**manifest.to_dict(), "folder": staged.name, "files": names}, fsync)
    _finish(folder, fsync=fsync)


def finish(folder: Path) -> None:
    """Move the files of a bundle whose writer was killed to their places.

    Raises:
        OSError: The folder cannot be written to.
    """
    with files.locked(str(folder / STAGED)):
        _finish(folder, fsync=True)


def _finish(folder: Path, *, fsync: bool) -> None:
    document = staged_document(folder / MANIFEST)
    if document is None:
        _remove_staged(folder)
        return
    staged, names = folder / document.pop("folder"), document.pop("files", [])
    for path in (staged, folder / KERNELS):
        if path.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    for name in names:
        if (staged / name).exists():  # otherwise it was moved before
            (folder / name).parent.mkdir(exist_ok=True)
            os.replace(staged / name, folder / name)
    if fsync:
        for parent in {(folder / name).parent for name in names}:
            files.sync_folder(str(parent))
    _write(folder, document, fsync)
    _remove_staged(folder)
    for path in (*folder.glob("*"), *folder.glob(f"{KERNELS}/*")):
        if _OWN.fullmatch(name := path.relative_to(folder).as_posix()) and name not in names:
            files.remove(str(path))


def _remove_staged(folder: Path) -> None:
    for path in folder.glob(f"{STAGED}.onnxfold-????????"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _write(folder: Path, manifest: dict[str, Any], fsync: bool) -> None:
    with files.replacing(str(folder / MANIFEST), fsync=fsync) as file:
        file.write((json.dumps(manifest, indent=1) + "\n").encode())
