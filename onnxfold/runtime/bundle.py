"""Bundles: the folder that a split model is written to, and its manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from onnxfold.errors import ModelError

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

FORMAT = 1
MANIFEST = "manifest.json"
ENTRY_FILE = "entry.onnx"
FOLD_FILE = "runtime_fold.onnx"
KERNELS = "kernels"
STAGED = "bundle"
"""How the name of a folder begins that a bundle is written to, see `onnxfold.runtime.staging`."""

_BLOCK = 1 << 20

_KERNEL_NAME = re.compile(r"[0-9a-f]{16,}\.")
_STAGED_NAME = re.compile(rf"{STAGED}\.onnxfold-[0-9a-f]{{8}}")

Version = tuple[int, int]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor at the border between caller, runtime_fold and entry."""

    name: str
    dtype: str
    """As ONNX calls it, in lower case: "float", "int64", "bfloat16"."""
    shape: list[int | str | None] | None = None
    nominal_bytes: int | None = None
    """At the nominal sizes of symbolic dimensions."""
    optional: bool = False
    """Whether it has a default value."""


@dataclass(frozen=True)
class Group:
    """Folded tensors that are made of the same runtime constants, and so change together."""

    constants: list[str]
    outputs: list[str]
    components: list[list[str]]
    """The outputs by which of them share a node's result: each can be a kernel of its own."""


@dataclass(frozen=True)
class Kernel:
    """What a backend made of one component, or why it did not."""

    backend: str
    outputs: list[str]
    inputs: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    """Initializers of runtime_fold that are inputs of the kernel, behind its own."""
    file: str | None = None
    """Below the bundle's folder; None if there is no kernel, and ``reason`` says why."""
    function: str = ""
    dtypes: list[str] = field(default_factory=list)
    """Of the outputs, as NumPy calls them."""
    key: dict[str, str] = field(default_factory=dict)
    """What the kernel was made of and for: graph hash, versions, CPU features, flags."""
    reason: str | None = None
    max_error: float | None = None
    """Largest difference from onnxruntime in the one-time check, in units of what is allowed."""
    beside: list[str] = field(default_factory=list)
    """Files that the kernel reads, in its folder."""


@dataclass(frozen=True)
class Stay:
    """A node that depends on runtime constants only but runs with entry, and why."""

    node: str
    op: str
    reason: str


@dataclass
class Manifest:
    """What is in a bundle.

    Attributes:
        runtime_constants: Inputs of the original that stay the same over many runs.
        inputs: Names of the original's inputs, in order.
        outputs: Names of its outputs, in order.
        entry_inputs: Names of entry's inputs, cached tensors included.
        cached: Results of runtime_fold that are inputs of entry.
        groups: The same by the runtime constants that they depend on.
        nodes: Nodes of the original, of entry and of runtime_fold.
        kernels: What backends made of runtime_fold.
        stays: Why nodes were not moved to runtime_fold.
        versions: Of what made the bundle.
        hashes: SHA-256 of runtime_fold by its file's name: what cached tensors are known by.
    """

    runtime_constants: list[TensorInfo]
    inputs: list[str]
    outputs: list[str]
    entry_inputs: list[str]
    cached: list[TensorInfo]
    groups: list[Group]
    fold_at: str = "compile"
    nodes: dict[str, int] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def cached_bytes(self) -> int:
        """Bytes of the cached tensors at nominal sizes."""
        return sum(info.nominal_bytes or 0 for info in self.cached)

    def to_dict(self) -> dict[str, Any]:
        """As it is written to the manifest."""
        return asdict(self)


@dataclass
class Bundle:
    """A bundle on the disk.

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

    def load_entry(self) -> ir.Model:
        """Entry, to be changed."""
        return self._load(self.entry)

    def load_runtime_fold(self) -> ir.Model:
        """Runtime_fold, to be changed; there is one if the manifest has groups."""
        model = self._load(self.runtime_fold)
        self._check_made([value.name for value in model.graph.outputs])
        return model

    def open_entry(
        self, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """A session of onnxruntime on entry."""
        session = self._open(self.entry, options, providers)
        inputs = (*session.get_inputs(), *session.get_overridable_initializers())
        if {value.name for value in inputs} != set(self.manifest.entry_inputs):
            raise ModelError("its inputs are not those of the manifest", file=self.entry)
        return session

    def open_runtime_fold(
        self, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """A session of onnxruntime on runtime_fold."""
        session = self._open(self.runtime_fold, options, providers)
        self._check_made([value.name for value in session.get_outputs()])
        return session

    def _check_made(self, outputs: Sequence[str | None]) -> None:
        if set(outputs) != {name for group in self.manifest.groups for name in group.outputs}:
            raise ModelError("its outputs are not those of the manifest", file=self.runtime_fold)

    def _load(self, path: Path) -> ir.Model:
        from onnxfold import storage

        self._check()
        model = storage.load(path)
        self._check()
        return model

    def _open(
        self, path: Path, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        import onnxruntime as ort

        self._check()
        try:
            session = ort.InferenceSession(str(path), options, providers=list(providers))
        except (TypeError, ValueError):  # of the arguments
            raise
        except Exception as error:  # onnxruntime raises many classes without a common base
            reason = " ".join(str(error).split())
            raise ModelError(f"onnxruntime does not open it: {reason}", file=path) from error
        self._check()
        return session

    def _check(self) -> None:
        """See that the files are those of the manifest that was read.

        Raises:
            ModelError: Another bundle has taken the place of this one.
        """
        if self.read is not None and _version(self.read[0]) != self.read[1]:
            raise ModelError("the bundle has been replaced; open it again", file=self.read[0])

    def fold_hash(self) -> str:
        """What cached tensors are known by: it tells one runtime_fold from another."""
        return self.manifest.hashes.get(FOLD_FILE) or hash_model(self.runtime_fold)


def is_kernel_name(name: str) -> bool:
    """Whether a file is called as kernels are."""
    return _KERNEL_NAME.match(name) is not None


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the folder (or the manifest) of a bundle."""
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
        version = _version(file)
        document = _document(file)
        own = Path(os.path.abspath(file))  # what is opened later may be so from another folder
        folder = own.parent / document.pop("folder", "")
        return Bundle(folder, _manifest(document), (own, version))
    except OSError as error:
        raise ModelError(f"not a bundle: {error.strerror}", file=file) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"damaged manifest: {error}", file=file) from None


def staged_folder(manifest: Path) -> Path | None:
    """The folder with a bundle's files if that is not the manifest's."""
    try:
        name = _document(manifest).get("folder")
    except (OSError, ValueError, RecursionError, ModelError):
        return None
    return None if name is None else manifest.parent / name


def _document(file: Path) -> dict[str, Any]:
    document = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ModelError("not a manifest of a format that this version reads", file=file)
    name = document.get("folder")
    if name is not None and not (isinstance(name, str) and _STAGED_NAME.fullmatch(name)):
        raise ValueError(f"folder {name!r} is none of a bundle")
    return document


def _version(file: Path) -> Version:
    """What tells a file from one that has taken its place; -1 if there is none."""
    try:
        status = file.stat()
    except OSError:
        return (-1, -1)
    return status.st_ino, status.st_mtime_ns


def _manifest(document: Mapping[str, Any]) -> Manifest:
    manifest: Manifest = _read(Manifest, document, "manifest")
    for kernel in manifest.kernels:
        for name in (kernel.file, *kernel.beside):
            if name is not None and (os.path.isabs(name) or ".." in Path(name).parts):
                raise ValueError(f"kernel file {name!r} is not in the bundle")
    return manifest


def _read(kind: Any, value: Any, name: str) -> Any:
    """What is written in JSON, as the type by which it is declared.

    Raises:
        ValueError: It is of another type.
        TypeError: A field is missing, or there is no such field.
    """
    parts = get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        kinds = get_type_hints(kind)
        return kind(**{n: _read(kinds.get(n, Any), v, n) for n, v in value.items()})  # type: ignore[operator]
    if get_origin(kind) is list and isinstance(value, list):
        return [_read(parts[0], item, name) for item in value]
    if get_origin(kind) is dict and isinstance(value, dict):
        return {_read(parts[0], k, name): _read(parts[1], v, name) for k, v in value.items()}
    if isinstance(kind, UnionType):
        for part in parts:
            with contextlib.suppress(ValueError):
                return _read(part, value, name)
    elif kind is Any or type(value) is kind or (kind is float and type(value) is int):
        return value
    raise ValueError(f"{name!r} is {value!r:.60}")


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def hash_model(path: Path) -> str:
    """SHA-256 of a model with its data file of the usual name."""
    data = path.with_name(path.name + ".data")
    parts = [hash_file(path), *([hash_file(data)] if data.exists() else [])]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest() if len(parts) > 1 else parts[0]
