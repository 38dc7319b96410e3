"""Replace a bundle atomically: its folder holds the old one or the new one.

The files of a bundle are written into a new folder inside of its folder. Renaming that folder is
the commit. Then the files are moved to their places, the manifest first, so that readers of the old
bundle detect the change. If the writer is killed, the next reader or writer moves the rest. Other
files in the bundle's folder stay.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from onnxfold import files
from onnxfold.errors import UsageError
from onnxfold.runtime.bundles.manifest import (
    COMMITTED,
    ENTRY_FILE,
    FOLD_FILE,
    KERNELS,
    MANIFEST,
    Manifest,
)
from onnxfold.storage.load import external_locations
from onnxfold.storage.sources import Sources, other_user
from onnxfold.storage.tensors import tensors_of

_MODELS = (ENTRY_FILE, FOLD_FILE)
_DATA = tuple(f"{model}.data" for model in _MODELS)
_KERNEL = re.compile(r"[0-9a-f]{16,}\..*", re.DOTALL)


def check_source(model: ir.Model, folder: Path) -> None:
    """Check that a bundle does not overwrite the model that it is made of.

    Raises:
        UsageError: It would overwrite the model.
    """
    sources = Sources(model, os.path.realpath(folder / MANIFEST), tensors_of(model))
    for name in (*_MODELS, *_DATA):
        if sources.include(os.path.realpath(folder / name)):
            reason = "belongs to the model that is split; write the bundle into another folder"
            raise UsageError(reason, file=folder / name)


@contextlib.contextmanager
def replacing(folder: Path, manifest: Manifest, *, fsync: bool) -> Iterator[Path]:
    """Provide a folder for the files of a bundle, which replace the old ones at the end.

    Args:
        folder: The bundle's own folder, which is created if necessary, and locked meanwhile.
        manifest: The manifest of the new bundle, which is written at the end.
        fsync: Whether to wait until the files are on the disk.

    Raises:
        UsageError: The bundle would overwrite something else.
        OSError: The disk is full, among others; the old or the new bundle is complete.
    """
    for name in (MANIFEST, *_MODELS, *_DATA):
        if (folder / name).is_dir():
            raise UsageError("cannot be written: it is a folder", file=folder / name)
    for name in _MODELS:
        data = folder / f"{name}.data"
        if user := other_user(str(data), str(folder / name)):
            raise UsageError(f"holds the data of {user!r}", file=data)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with files.locked(_target(folder)):
            _finish(folder, fsync=True)
            staged = Path(files.temporary_path(_target(folder)))
            try:
                staged.mkdir()
                yield staged
                text = json.dumps(manifest.to_dict(), indent=1) + "\n"
                (staged / MANIFEST).write_text(text, encoding="utf-8")
                if fsync:
                    _sync(staged, [staged / name for name in _names_in(staged)])
                os.rename(staged, folder / COMMITTED)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
            if fsync:
                files.sync_folder(str(folder))
            _finish(folder, fsync=fsync)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()


def finish(folder: Path) -> None:
    """Move the files of a bundle whose writer was killed to their places.

    Raises:
        OSError: The folder cannot be written to.
        ValueError: The manifest is damaged.
    """
    with files.locked(_target(folder)):
        _finish(folder, fsync=True)


def _finish(folder: Path, *, fsync: bool) -> None:
    new = folder / COMMITTED
    if not new.is_dir():
        return
    for path in (new, folder / KERNELS):
        if path.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    for name in sorted(_names_in(new), key=lambda name: name != MANIFEST):
        (folder / name).parent.mkdir(exist_ok=True)
        os.replace(new / name, folder / name)
    if fsync:
        _sync(folder, [])
    # files of the old bundle that the manifest does not name
    manifest = Manifest.from_dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    named = {ENTRY_FILE, *([FOLD_FILE] if manifest.groups else [])}
    for model in named & {*os.listdir(folder)}:
        named = named | external_locations(str(folder / model))
    for name in (*_MODELS, *_DATA):
        if name not in named:
            files.remove(str(folder / name))
    kernels = {name for kernel in manifest.kernels for name in kernel.files}
    for path in folder.glob(f"{KERNELS}/*"):
        if _KERNEL.fullmatch(path.name) and f"{KERNELS}/{path.name}" not in kernels:
            files.remove(str(path))
    shutil.rmtree(new)


def _names_in(folder: Path) -> list[str]:
    return [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]


def _sync(folder: Path, paths: list[Path]) -> None:
    """Wait until files and the entries of a folder, and of its kernels' folder, are on the disk."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for parent in (folder / KERNELS, folder):
        if parent.is_dir():
            files.sync_folder(str(parent))


def _target(folder: Path) -> str:
    """Return the name under which a bundle's folder is locked."""
    return str(folder / "bundle")
