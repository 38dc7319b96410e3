"""Bundles: folders that contain a split model, and their atomic replacement.

The files of a bundle are written into a new folder inside of the bundle's folder. Renaming the new
folder commits them. Then the files are moved into the bundle's folder, the manifest first, so that
readers of the old bundle detect the change. Files of the old bundle that the new bundle does not
contain are removed. If the writer is killed, the next reader or writer completes these steps. Other
files in the bundle's folder are not changed.

Opening a bundle does not import onnx-ir, unless committed files were not moved yet.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.runtime.bundles.bundle_text import bundle_text
from onnxfold.runtime.bundles.manifest import (
    COMMITTED,
    ENTRY_FILE,
    FOLD_FILE,
    FORMAT,
    KERNELS,
    MANIFEST,
    READABLE,
    Manifest,
)
from onnxfold.support import files, system
from onnxfold.support.errors import ModelError, UsageError
from onnxfold.support.file_contents import Status, describe, hash_files, recorded
from onnxfold.support.file_contents import statuses as file_statuses
from onnxfold.support.onnxruntime_sessions import default_options, message_of, open_session
from onnxfold.support.tables import Printable, Table
from onnxfold.support.user_caches import put, touch, user_folder

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

logger = logging.getLogger("onnxfold")

Version = tuple[int, int]
"""The inode and the modification time of a file, see `_version`."""

_MODELS = (ENTRY_FILE, FOLD_FILE)
_DATA = tuple(f"{model}.data" for model in _MODELS)
_MAX_RECORD_BYTES = 1 << 20  # maximum bytes of all records of hashes: some thousands of bundles
_LOCKED = "bundle"  # name of the lock in a bundle's folder
# Names of the files of kernels. Other files in the folder of kernels are never removed.
_KERNEL = re.compile(r"[0-9a-f]{16,}\..*", re.DOTALL)


class Bundle(Printable):
    """A split model in a folder. Several threads may use the same bundle at the same time.

    The name of a part is the name of its file: `ENTRY_FILE`, or `FOLD_FILE` if the manifest has
    groups.

    Args:
        folder: The folder of the bundle.
        manifest: The manifest of the bundle.
        read: The path and version of the manifest file. None while the bundle is written.

    Attributes:
        compiles_ahead: Whether a session compiles kernels of the bundle while the session runs.
    """

    compiles_ahead = False

    def __init__(
        self, folder: Path, manifest: Manifest, read: tuple[Path, Version] | None = None
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self._read = read
        self._fold: dict[str, Any] | None = None  # hash and statuses of runtime_fold

    @property
    def name(self) -> str:
        """The folder, as text."""
        return str(self.folder)

    @property
    def entry(self) -> Path:
        """The path of entry, the model that runs in every call."""
        return self.folder / ENTRY_FILE

    @property
    def runtime_fold(self) -> Path:
        """The path of runtime_fold, the model that computes the cached tensors."""
        return self.folder / FOLD_FILE

    @property
    def fold_hash(self) -> str:
        """SHA-256 of the content of runtime_fold and its data file, in hexadecimal.

        The keys of cached tensors contain this hash. The user's cache folder contains a record of
        the hash, see `onnxfold.support.file_contents`.

        Raises:
            ModelError: A file cannot be read.
        """
        if self._fold is None:
            try:
                self._fold = _described(_files_of(self.runtime_fold))
            except OSError as error:
                raise ModelError(f"cannot be read: {error.strerror}", file=error.filename) from None
        digest: str = self._fold["digest"]
        return digest

    @property
    def fold_key(self) -> str:
        """A key of runtime_fold and its weights that is valid in this process."""
        return self.fold_hash

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as a JSON-ready dictionary."""
        return self.manifest.to_dict()

    def load(self, part: str) -> ir.Model:
        """Load a part as a model that the caller may change.

        Raises:
            ModelError: The part cannot be read, or does not belong to the manifest.
        """
        from onnxfold.ir import storage

        self._check()
        model = storage.load(self.folder / part)
        inputs = [v for v in model.graph.inputs if model.ir_version > 3 or not v.is_initializer()]
        self._check_names(part, inputs, model.graph.outputs)
        return model

    def open(
        self, part: str, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """Open an onnxruntime session on a part.

        Args:
            part: The name of the part.
            options: The session options, or None for `default_options`.
            providers: The execution providers.

        Raises:
            ModelError: onnxruntime cannot open the part, or the part does not belong to the
                manifest.
            TypeError: An argument is invalid.
            ValueError: An argument is invalid.
        """
        self._check()
        path = self.folder / part
        try:
            session = open_session(path, options or default_options(), providers)
        except (TypeError, ValueError):  # invalid arguments
            raise
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            reason = f"onnxruntime cannot open it: {message_of(error)}"
            raise ModelError(reason, file=path) from error
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        self._check_names(part, inputs, session.get_outputs())
        return session

    def _check(self) -> None:
        """Raise a ModelError if the bundle was replaced or moved after its manifest was read."""
        if self._read is not None and _version(self._read[0]) != self._read[1]:
            raise ModelError("the bundle was replaced or moved; open it again", file=self._read[0])

    def _check_unchanged(self, statuses: Mapping[str, Status]) -> None:
        """Raise a ModelError if a file of runtime_fold was changed after its content was hashed.

        ``statuses`` are the statuses of the files when they were hashed.
        """
        with contextlib.suppress(OSError):
            if file_statuses(self.folder, statuses) == statuses:
                return
        reason = "the file was changed after the bundle was opened; open the bundle again"
        raise ModelError(reason, file=self.runtime_fold)

    def _check_names(self, part: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Raise a ModelError if a part does not belong to the manifest.

        The part belongs to the manifest if the inputs of entry, or the outputs of runtime_fold, are
        those in the manifest. The bundle must be unchanged.
        """
        self._check()
        if part == FOLD_FILE and self._fold is not None:
            self._check_unchanged(self._fold["files"])
        kind = "inputs"
        found = inputs
        known = {*self.manifest.entry_inputs}
        if part != ENTRY_FILE:
            kind = "outputs"
            found = outputs
            known = set().union(*(group.outputs for group in self.manifest.groups))
        if {value.name for value in found} != known:
            reason = f"its {kind} differ from those in the manifest"
            raise ModelError(reason, file=self.folder / part)

    def _text_parts(self, *, verbose: bool = False) -> Iterator[str | Table]:
        return bundle_text(self.name, self.manifest, verbose=verbose)


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder or a manifest, and therefore not a model file."""
    return os.path.isdir(path) or os.path.basename(path) == MANIFEST


def open_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Open a bundle by reading its manifest.

    If the replacement of the bundle was interrupted, it is completed first.

    Args:
        path: The folder of the bundle, or the path of its manifest.

    Raises:
        ModelError: The manifest is missing, is damaged, or has a format that this version cannot
            read.
    """
    path = Path(path)
    file = path if path.name == MANIFEST else path / MANIFEST
    try:
        _finish_interrupted(file.parent)
        version = _version(file)
        absolute = Path(os.path.abspath(file))  # the working directory may change later
        document = _document(file)
        if _finish_interrupted(file.parent):  # another bundle replaced this one in the meantime
            return open_bundle(path)
        return Bundle(absolute.parent, Manifest.from_dict(document), (absolute, version))
    except OSError as error:
        raise ModelError(f"not a bundle: {error.strerror}", file=file) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"damaged manifest: {error}", file=file) from None


def _finish_interrupted(folder: Path) -> bool:
    """Finish an interrupted replacement of a bundle, or wait until a running one has finished.

    Returns:
        Whether a replacement was in progress.
    """
    if not (folder / COMMITTED).is_dir():
        return False
    with files.locked(str(folder / _LOCKED)):
        _finish(folder, fsync=True)
    return True


def _document(file: Path) -> dict[str, Any]:
    document: Any = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or type(found := document.get("format")) is not int:
        raise ModelError("not the manifest of a bundle: it has no format", file=file)
    if found not in READABLE:
        versions = document.get("versions")
        writer = versions.get("onnxfold") if isinstance(versions, dict) else None
        by = f" of onnxfold {writer}" if isinstance(writer, str) else ""
        remedy = "use a newer onnxfold" if found > FORMAT else "split the model again"
        formats = " and ".join(map(str, READABLE))
        reason = f"the manifest has format {found}{by}; this version reads {formats}: {remedy}"
        raise ModelError(reason, file=file)
    return document


def _version(file: Path) -> Version:
    """Return the inode and the modification time of a file.

    At least one of these numbers changes when the file is replaced. If the file does not exist or
    cannot be accessed, the result is (-1, -1).
    """
    try:
        status = file.stat()
    except OSError:
        return (-1, -1)
    return status.st_ino, status.st_mtime_ns


def hash_model(path: Path) -> str:
    """Return the SHA-256 of a model and its data file of the usual name, in hexadecimal.

    Raises:
        OSError: A file cannot be read.
    """
    return hash_files(_files_of(path))


def _described(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the hash and the statuses of files, see `describe`.

    They are read from a record in the user's cache folder. Without a record, or if a file was
    changed, the function hashes the files and writes a new record.

    Raises:
        OSError: A file cannot be read.
    """
    names = [str(path) for path in paths]
    key = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
    record = user_folder("bundles") / f"{key}.json"
    known = recorded(record)
    if known is not None and list(known["files"]) == names:
        touch(record)
        return known
    known = describe(record.parent, names)
    try:
        os.makedirs(record.parent, mode=0o700, exist_ok=True)
        with files.new_file(str(record)) as new:
            os.write(new.fd, json.dumps(known).encode())
            new.close()
            put(new.path, str(record), _MAX_RECORD_BYTES)
    except OSError as error:
        logger.debug("the hash of %s is not recorded: %s", names[0], error)
    return known


def _files_of(path: Path) -> list[Path]:
    """Return the path of a model and, if its data file of the usual name exists, also that path."""
    data = path.with_name(path.name + ".data")
    return [path, data] if data.exists() else [path]


def check_source(model: ir.Model, folder: Path) -> None:
    """Raise a UsageError if a bundle in a folder would overwrite a file of the model that is split.

    Args:
        model: The model that is split.
        folder: The folder of the bundle.
    """
    from onnxfold.ir.storage.save import Sources
    from onnxfold.ir.storage.tensors import tensors_of

    sources = Sources(model, os.path.realpath(folder / MANIFEST), tensors_of(model))
    for name in (*_MODELS, *_DATA):
        if sources.include(os.path.realpath(folder / name)):
            reason = "it belongs to the model that is split; write the bundle into another folder"
            raise UsageError(reason, file=folder / name)


@contextlib.contextmanager
def replacing(folder: Path, manifest: Manifest, *, fsync: bool) -> Iterator[Path]:
    """Yield a new folder for the parts and kernels of a bundle.

    At the end of the context, the manifest is written to the new folder, and the files in the new
    folder replace the old bundle. After an error, either the old or the new bundle can be opened.

    Args:
        folder: The folder of the bundle. It is created if it does not exist.
        manifest: The manifest of the new bundle. It may be changed within the context.
        fsync: Whether to wait until the files are on the disk.

    Raises:
        UsageError: A file or folder in ``folder`` must not be replaced.
        OSError: A file cannot be written.
    """
    from onnxfold.ir.storage.save import other_user

    for name in (MANIFEST, *_MODELS, *_DATA):
        if (folder / name).is_dir():
            raise UsageError("cannot be written: it is a folder", file=folder / name)
    # The manifest may be missing or damaged.
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads((folder / MANIFEST).read_bytes())
        if not isinstance(document, dict) or "format" not in document:
            reason = "it is not the manifest of a bundle; write the bundle into another folder"
            raise UsageError(reason, file=folder / MANIFEST)
    for name in _MODELS:
        data = folder / f"{name}.data"
        if user := other_user(str(data), str(folder / name)):
            reason = f"it contains data of {user!r}; write the bundle into another folder"
            raise UsageError(reason, file=data)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with files.locked(target := str(folder / _LOCKED)):
            _finish(folder, fsync=True)
            staged = Path(files.temporary_path(target))
            try:
                staged.mkdir()
                yield staged
                text = json.dumps(manifest.to_dict(), indent=1) + "\n"
                (staged / MANIFEST).write_text(text, encoding="utf-8")
                if fsync:
                    _sync(staged, [staged / name for name in _names_in(staged)])
                files.rename_folder(str(staged), str(folder / COMMITTED))
            finally:
                files.remove_folder(str(staged))
            if fsync:
                system.sync_folder(str(folder))
            _finish(folder, fsync=fsync)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()


def _finish(folder: Path, *, fsync: bool) -> None:
    """Move committed files into the folder of a bundle, and remove files of the old bundle.

    Without committed files, the function does nothing. The caller must hold the folder's lock.

    Raises:
        OSError: A file cannot be moved.
    """
    new = folder / COMMITTED
    if not new.is_dir():
        return
    for path in (new, folder / KERNELS):
        if path.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    for name in sorted(_names_in(new), key=lambda name: name != MANIFEST):
        (folder / name).parent.mkdir(exist_ok=True)
        files.replace_file(str(new / name), str(folder / name), str(folder / _LOCKED))
    if fsync:
        _sync(folder, [])
    # Remove the files of the old bundle that the new bundle does not contain.
    from onnxfold.ir.storage.load import external_locations

    manifest = Manifest.from_dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    named = {ENTRY_FILE, *([FOLD_FILE] if manifest.groups else [])}
    for model in named & {*os.listdir(folder)}:
        named = named | external_locations(str(folder / model))
    for name in (*_MODELS, *_DATA):
        if name not in named:
            files.remove_file(str(folder / _LOCKED), str(folder / name))
    kernels = {name for kernel in manifest.kernels for name in kernel.files}
    for path in folder.glob(f"{KERNELS}/*"):
        if _KERNEL.fullmatch(path.name) and f"{KERNELS}/{path.name}" not in kernels:
            files.remove_file(str(folder / _LOCKED), str(path))
    shutil.rmtree(new)


def _names_in(folder: Path) -> list[str]:
    return [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]


def _sync(folder: Path, paths: list[Path]) -> None:
    """Wait until files are on the disk, and also the entries of a folder and its kernel folder."""
    for path in paths:
        system.sync_path(path)
    for parent in (folder / KERNELS, folder):
        if parent.is_dir():
            system.sync_folder(str(parent))
