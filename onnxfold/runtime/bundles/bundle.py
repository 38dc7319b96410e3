"""Bundles: the folder that a split model is written to."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onnxfold.errors import ModelError, printable
from onnxfold.onnxruntime_sessions import message_of, open_session
from onnxfold.runtime.bundles.manifest import FORMAT, Manifest

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

MANIFEST = "manifest.json"
ENTRY_FILE = "entry.onnx"
FOLD_FILE = "runtime_fold.onnx"
KERNELS = "kernels"
STAGED = "bundle"
"""How the name of a folder begins that a bundle is written to, see `staging`."""

_BLOCK = 1 << 20

_STAGED_NAME = re.compile(rf"{STAGED}\.onnxfold-[0-9a-f]{{8}}")
_STAGED_FILE = re.compile(rf"(entry|runtime_fold)\.onnx(\.data)?|{KERNELS}/[^/]+")

Version = tuple[int, int]


class SplitModel(Protocol):
    """A split model, on the disk (`Bundle`) or in memory; threads may use it at the same time.

    A part of it is called as its file is: `ENTRY_FILE`, or `FOLD_FILE` if the manifest has groups.
    """

    @property
    def manifest(self) -> Manifest:
        """What it consists of."""

    @property
    def folder(self) -> Path:
        """Where its kernels are."""

    @property
    def fold_hash(self) -> str:
        """What cached tensors are known by: it tells one runtime_fold from another.

        The manifest's hash of the file, if it has one, is that of which kernels were made.
        """

    def load(self, part: str) -> ir.Model:
        """Return a part as a model, to be changed."""

    def open(
        self, part: str, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """Return a session of onnxruntime on a part."""


@dataclass
class Bundle:
    """A bundle on the disk, see `SplitModel`.

    Attributes:
        folder: Where its files are.
        manifest: What it consists of.
        read: The manifest's file, and which one it was; None for a bundle that is being written.
    """

    folder: Path
    manifest: Manifest
    read: tuple[Path, Version] | None = None

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
        """SHA-256 of runtime_fold: of the file as it is, not as the manifest knows it.

        It is read for that only if there are kernels, or if it is younger than the manifest.

        Raises:
            ModelError: It cannot be read.
        """
        known = self.manifest.hashes.get(FOLD_FILE)
        try:
            if known and not any(k.files for k in self.manifest.kernels) and not self._is_younger():
                return known
            return hash_model(self.runtime_fold)
        except OSError as error:
            raise ModelError(f"cannot be read: {error.strerror}", file=error.filename) from None

    def _is_younger(self) -> bool:
        """Return whether runtime_fold was written to after the manifest."""
        files = [file.stat().st_mtime_ns for file in _files_of(self.runtime_fold)]
        return self.read is None or max(files) > self.read[1][1]

    def load(self, part: str) -> ir.Model:
        """Return a part as a model, to be changed.

        Raises:
            ModelError: It is damaged, or belongs to another bundle.
        """
        from onnxfold import storage

        self._check()
        model = storage.load(self.folder / part)
        self._check()
        self._check_names(part, model.graph.inputs, model.graph.outputs)
        return model

    def open(
        self, part: str, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """Return a session of onnxruntime on a part.

        Raises:
            ModelError: It is damaged, or belongs to another bundle.
        """
        self._check()
        path = self.folder / part
        try:
            session = open_session(path, options, providers)
        except (TypeError, ValueError):  # of the arguments
            raise
        except Exception as error:  # onnxruntime raises many classes without a common base
            reason = f"onnxruntime does not open it: {message_of(error)}"
            raise ModelError(reason, file=path) from error
        self._check()
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        self._check_names(part, inputs, session.get_outputs())
        return session

    def _check(self) -> None:
        """See that the files are those of the manifest that was read.

        Raises:
            ModelError: Another bundle has taken the place of this one.
        """
        if self.read is not None and _version(self.read[0]) != self.read[1]:
            raise ModelError("the bundle has been replaced; open it again", file=self.read[0])

    def _check_names(self, part: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """See that a part is the one that the manifest describes."""
        manifest = self.manifest
        if part == ENTRY_FILE:
            what, found, known = "inputs", inputs, set(manifest.entry_inputs)
        else:
            made = {name for group in manifest.groups for name in group.outputs}
            what, found, known = "outputs", outputs, made
        if {value.name for value in found} != known:
            reason = f"its {what} are not those of the manifest"
            raise ModelError(reason, file=self.folder / part)


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is the folder (or the manifest) of a bundle."""
    path = Path(path)
    return (path / MANIFEST).is_file() or (path.name == MANIFEST and path.is_file())


def open_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read the manifest of a bundle.

    Raises:
        ModelError: There is no manifest, or it is damaged or of a newer format.
    """
    path = Path(path)
    file = path if path.name == MANIFEST else path / MANIFEST
    try:
        if staged_document(file) is not None:
            from onnxfold.runtime.bundles.staging import finish

            finish(file.parent)
        version = _version(file)
        own = Path(os.path.abspath(file))  # what is opened later may be so from another folder
        document = _document(file)
        for key in ("folder", "files"):  # of a bundle that is just being put in place
            document.pop(key, None)
        return Bundle(own.parent, Manifest.from_dict(document), (own, version))
    except OSError as error:
        raise ModelError(f"not a bundle: {error.strerror}", file=file) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"damaged manifest: {error}", file=file) from None


def staged_document(manifest: Path) -> dict[str, Any] | None:
    """Return a manifest that names the folder with its files, which are to be moved; see `staging`.

    None if they are at their places, or there is no bundle.
    """
    try:
        document = _document(manifest)
    except (OSError, ValueError, RecursionError, ModelError):
        return None
    return document if "folder" in document else None


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
    name = document.get("folder")
    if "folder" in document and not (isinstance(name, str) and _STAGED_NAME.fullmatch(name)):
        raise ValueError(f"folder {name!r} is none of a bundle")
    names = document.get("files", [])
    if not isinstance(names, list) or not all(_STAGED_FILE.fullmatch(str(name)) for name in names):
        raise ValueError(f"files {names!r} are none of a bundle")
    return document


def _version(file: Path) -> Version:
    """Return what tells a file from one that has taken its place; -1 if there is none."""
    try:
        status = file.stat()
    except OSError:
        return (-1, -1)
    return status.st_ino, status.st_mtime_ns


def hash_model(path: Path) -> str:
    """SHA-256 of a model with its data file of the usual name, in hexadecimal."""
    parts = [hash_file(file) for file in _files_of(path)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest() if len(parts) > 1 else parts[0]


def _files_of(path: Path) -> list[Path]:
    """Return a model, and its data file of the usual name if there is one."""
    data = path.with_name(path.name + ".data")
    return [path, data] if data.exists() else [path]


def hash_file(path: Path, copy: str | os.PathLike[str] = os.devnull) -> str:
    """SHA-256 of a file, in hexadecimal, and of the copy that is made of it on the way."""
    digest = hashlib.sha256()
    with open(path, "rb") as file, open(copy, "wb") as copied:
        while block := file.read(_BLOCK):
            digest.update(block)
            copied.write(block)
    return digest.hexdigest()
