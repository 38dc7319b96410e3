"""Bundles: the folder that a split model is written to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.errors import ModelError, printable
from onnxfold.onnxruntime_sessions import message_of, open_session
from onnxfold.runtime.bundles.manifest import (
    COMMITTED,
    ENTRY_FILE,
    FOLD_FILE,
    FORMAT,
    MANIFEST,
    Manifest,
)
from onnxfold.tables import Shown

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

Version = tuple[int, int]


class Bundle(Shown, text="onnxfold.report.runtime_tables:bundle_text"):
    """A split model; threads may use it at the same time.

    A part has the name of its file: `ENTRY_FILE`, or `FOLD_FILE` if the manifest has groups.

    Args:
        folder: The folder of its files.
        manifest: The manifest.
        read: The path and version of the manifest file; None for a bundle that is being written.
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

        Raises:
            ModelError: The file cannot be read.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as a JSON-ready dictionary."""
        return self.manifest.to_dict()

    def load(self, part: str) -> ir.Model:
        """Load a part as a model that may be changed.

        Raises:
            ModelError: The part is damaged, or belongs to another bundle.
        """
        from onnxfold import storage

        self._check()
        model = storage.load(self.folder / part)
        self._check_names(part, model.graph.inputs, model.graph.outputs)
        return model

    def open(
        self, part: str, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """Open an onnxruntime session on a part.

        Raises:
            ModelError: The part is damaged, or belongs to another bundle.
        """
        self._check()
        path = self.folder / part
        try:
            session = open_session(path, options, providers)
        except (TypeError, ValueError):  # invalid arguments
            raise
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            reason = f"onnxruntime does not open it: {message_of(error)}"
            raise ModelError(reason, file=path) from error
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        self._check_names(part, inputs, session.get_outputs())
        return session

    def _check(self) -> None:
        """Check that the manifest file is the one that was read.

        Raises:
            ModelError: The bundle has been replaced.
        """
        if self._read is not None and _version(self._read[0]) != self._read[1]:
            raise ModelError("the bundle has been replaced; open it again", file=self._read[0])

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
    """Read the manifest of a bundle.

    Raises:
        ModelError: There is no manifest, or it is damaged or of a newer format.
    """
    path = Path(path)
    file = path if path.name == MANIFEST else path / MANIFEST
    try:
        _finish(file.parent)
        version = _version(file)
        own = Path(os.path.abspath(file))  # the working directory may change later
        document = _document(file)
        if _finish(file.parent):  # another bundle has replaced this one meanwhile
            return open_bundle(path)
        return Bundle(own.parent, Manifest.from_dict(document), (own, version))
    except OSError as error:
        raise ModelError(f"not a bundle: {error.strerror}", file=file) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"damaged manifest: {error}", file=file) from None


def _finish(folder: Path) -> bool:
    """Finish or await the interrupted replacement of a bundle; False if there is none."""
    if not (folder / COMMITTED).is_dir():
        return False
    from onnxfold.runtime.bundles.staging import finish

    finish(folder)
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
        raise ModelError(printable(reason), file=file)
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
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
