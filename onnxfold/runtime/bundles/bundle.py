"""Bundles: the folder that a split model is written to, read, and replaced atomically.

The files of a bundle are written into a new folder inside of its folder. Renaming that folder is
the commit. Then the files are moved to their places, the manifest first, so that readers of the old
bundle detect the change. If the writer is killed, the next reader or writer moves the rest. Other
files in the bundle's folder stay.

Opening a bundle does not import onnx-ir.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold import files
from onnxfold.errors import ModelError, UsageError
from onnxfold.forks import cached_property
from onnxfold.onnxruntime_sessions import default_options, message_of, open_session
from onnxfold.runtime.bundles.manifest import (
    COMMITTED,
    ENTRY_FILE,
    FOLD_FILE,
    FORMAT,
    KERNELS,
    MANIFEST,
    Manifest,
)
from onnxfold.tables import Shown

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

Version = tuple[int, int]

_MODELS = (ENTRY_FILE, FOLD_FILE)
_DATA = tuple(f"{model}.data" for model in _MODELS)
_LOCKED = "bundle"  # the name under which a folder is locked
_KERNEL = re.compile(r"[0-9a-f]{16,}\..*", re.DOTALL)


class Bundle(Shown, text="onnxfold.report.runtime_tables:bundle_text"):
    """A split model; threads may use it at the same time.

    A part has the name of its file: `ENTRY_FILE`, or `FOLD_FILE` if the manifest has groups.
    ``read`` is the path and version of the manifest file, None while the bundle is written.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, read: tuple[Path, Version] | None = None
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self._read = read

    @property
    def name(self) -> str:
        """The folder, as text."""
        return str(self.folder)

    @property
    def entry(self) -> Path:
        """The model that runs every time."""
        return self.folder / ENTRY_FILE

    @property
    def runtime_fold(self) -> Path:
        """The model that makes the cached tensors."""
        return self.folder / FOLD_FILE

    @cached_property
    def fold_hash(self) -> str:
        """SHA-256 of runtime_fold, a part of the keys of cached tensors.

        It is computed from the current file; the manifest has that of the kernels' source. The file
        is read only if there are kernels, or if it is newer than the manifest.
        """
        known = self.manifest.hashes.get(FOLD_FILE)
        try:
            if known and self._read is not None and not any(k.files for k in self.manifest.kernels):
                changed = [path.stat().st_mtime_ns for path in _files_of(self.runtime_fold)]
                if max(changed) <= self._read[1][1]:
                    return known
            return hash_model(self.runtime_fold)
        except OSError as error:
            raise ModelError(f"cannot be read: {error.strerror}", file=error.filename) from None

    @property
    def fold_key(self) -> str:
        """A key of runtime_fold and its weights within this process."""
        return self.fold_hash

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as a JSON-ready dictionary."""
        return self.manifest.to_dict()

    def load(self, part: str) -> ir.Model:
        """Load a part as a model that may be changed."""
        from onnxfold import storage

        self._check()
        model = storage.load(self.folder / part)
        inputs = [v for v in model.graph.inputs if model.ir_version > 3 or not v.is_initializer()]
        self._check_names(part, inputs, model.graph.outputs)
        return model

    def open(
        self, part: str, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """Open an onnxruntime session on a part."""
        self._check()
        path = self.folder / part
        try:
            session = open_session(path, options or default_options(), providers)
        except (TypeError, ValueError):  # invalid arguments
            raise
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            reason = f"onnxruntime does not open it: {message_of(error)}"
            raise ModelError(reason, file=path) from error
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        self._check_names(part, inputs, session.get_outputs())
        return session

    def _check(self) -> None:
        """Check that the bundle has not been replaced since its manifest was read."""
        if self._read is not None and _version(self._read[0]) != self._read[1]:
            raise ModelError("the bundle was replaced or moved; open it again", file=self._read[0])

    def _check_names(self, part: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Check that the inputs or outputs of a part are those of the manifest."""
        self._check()
        what, found, known = "inputs", inputs, {*self.manifest.entry_inputs}
        if part != ENTRY_FILE:
            made = (group.outputs for group in self.manifest.groups)
            what, found, known = "outputs", outputs, set().union(*made)
        if {value.name for value in found} != known:
            reason = f"its {what} are not those of the manifest"
            raise ModelError(reason, file=self.folder / part)


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Return whether a path can only be a bundle: a folder or a manifest."""
    return os.path.isdir(path) or os.path.basename(path) == MANIFEST


def open_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read the manifest of a bundle."""
    path = Path(path)
    file = path if path.name == MANIFEST else path / MANIFEST
    try:
        _finish_interrupted(file.parent)
        version = _version(file)
        own = Path(os.path.abspath(file))  # the working directory may change later
        document = _document(file)
        if _finish_interrupted(file.parent):  # another bundle has replaced this one meanwhile
            return open_bundle(path)
        return Bundle(own.parent, Manifest.from_dict(document), (own, version))
    except OSError as error:
        raise ModelError(f"not a bundle: {error.strerror}", file=file) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"damaged manifest: {error}", file=file) from None


def _finish_interrupted(folder: Path) -> bool:
    """Finish or await the interrupted replacement of a bundle; False if there is none."""
    if not (folder / COMMITTED).is_dir():
        return False
    with files.locked(str(folder / _LOCKED)):
        _finish(folder, fsync=True)
    return True


def _document(file: Path) -> dict[str, Any]:
    document: Any = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or type(found := document.get("format")) is not int:
        raise ModelError("not the manifest of a bundle: it names no format", file=file)
    if found != FORMAT:
        versions = document.get("versions")
        maker = versions.get("onnxfold") if isinstance(versions, dict) else None
        by = f", which onnxfold {maker} writes" if isinstance(maker, str) else ""
        remedy = "a newer onnxfold reads it" if found > FORMAT else "split the model again"
        reason = f"the manifest has format {found}{by}; this version reads {FORMAT}: {remedy}"
        raise ModelError(reason, file=file)
    return document


def _version(file: Path) -> Version:
    """Return the version of a file, which changes when it is replaced; -1 if there is no file."""
    try:
        status = file.stat()
    except OSError:
        return (-1, -1)
    return status.st_ino, status.st_mtime_ns


def hash_model(path: Path) -> str:
    """Return the SHA-256 of a model with its data file of the usual name, in hexadecimal."""
    parts = [hash_file(file) for file in _files_of(path)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest() if len(parts) > 1 else parts[0]


def _files_of(path: Path) -> list[Path]:
    """Return the paths of a model and of its data file of the usual name, if there is one."""
    data = path.with_name(path.name + ".data")
    return [path, data] if data.exists() else [path]


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    if path.exists() and not path.is_file():  # a named pipe or a device has no end
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 18):  # two of them may stay in the heap
            digest.update(block)
    return digest.hexdigest()


def check_source(model: ir.Model, folder: Path) -> None:
    """Check that a bundle does not overwrite the model that it is made of."""
    from onnxfold.storage.save import Sources
    from onnxfold.storage.tensors import tensors_of

    sources = Sources(model, os.path.realpath(folder / MANIFEST), tensors_of(model))
    for name in (*_MODELS, *_DATA):
        if sources.include(os.path.realpath(folder / name)):
            reason = "belongs to the model that is split; write the bundle into another folder"
            raise UsageError(reason, file=folder / name)


@contextlib.contextmanager
def replacing(folder: Path, manifest: Manifest, *, fsync: bool) -> Iterator[Path]:
    """Provide a folder for the files of a bundle, which replace the old ones at the end.

    The manifest is written last. After an OSError, the old or the new bundle is complete.
    """
    from onnxfold.storage.save import other_user

    for name in (MANIFEST, *_MODELS, *_DATA):
        if (folder / name).is_dir():
            raise UsageError("cannot be written: it is a folder", file=folder / name)
    # there may be none, or a damaged one
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads((folder / MANIFEST).read_bytes())
        if not isinstance(document, dict) or "format" not in document:
            reason = "is not the manifest of a bundle; write the bundle into another folder"
            raise UsageError(reason, file=folder / MANIFEST)
    for name in _MODELS:
        data = folder / f"{name}.data"
        if user := other_user(str(data), str(folder / name)):
            raise UsageError(f"holds the data of {user!r}", file=data)
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
    from onnxfold.storage.load import external_locations

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
