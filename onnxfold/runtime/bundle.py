"""Bundles: the folder that a split model is written to, and its manifest."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.errors import ModelError

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

FORMAT = 1
MANIFEST = "manifest.json"
ENTRY_FILE = "entry.onnx"
FOLD_FILE = "runtime_fold.onnx"
KERNELS = "kernels"

_BLOCK = 1 << 20

_KERNEL_NAME = re.compile(r"[0-9a-f]{16,}\.")


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
    """A bundle on the disk."""

    folder: Path
    manifest: Manifest

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
        from onnxfold import storage

        return storage.load(self.entry)

    def load_runtime_fold(self) -> ir.Model:
        """Runtime_fold, to be changed; there is one if the manifest has groups."""
        from onnxfold import storage

        return storage.load(self.runtime_fold)

    def open_entry(
        self, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """A session of onnxruntime on entry."""
        return _open(self.entry, options, providers)

    def open_runtime_fold(
        self, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
    ) -> onnxruntime.InferenceSession:
        """A session of onnxruntime on runtime_fold."""
        return _open(self.runtime_fold, options, providers)

    def fold_hash(self) -> str:
        """What cached tensors are known by: it tells one runtime_fold from another."""
        return self.manifest.hashes.get(FOLD_FILE) or hash_model(self.runtime_fold)

    def write_manifest(self) -> None:
        """Write ``manifest.json``; the last step of making a bundle."""
        path = self.folder / MANIFEST
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.manifest.to_dict(), indent=1) + "\n")
        os.replace(temporary, path)

    def remove_manifest(self) -> None:
        """Take ``manifest.json`` away: the first step of writing over a bundle."""
        (self.folder / MANIFEST).unlink(missing_ok=True)

    def remove_old_kernels(self) -> None:
        """Remove kernels that the manifest does not name."""
        named = {name for k in self.manifest.kernels for name in (k.file, *k.beside)}
        for path in (self.folder / KERNELS).glob("*"):
            if _KERNEL_NAME.match(path.name) and f"{KERNELS}/{path.name}" not in named:
                path.unlink(missing_ok=True)


def _open(
    path: Path, options: onnxruntime.SessionOptions | None, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    import onnxruntime as ort

    return ort.InferenceSession(str(path), options, providers=list(providers))


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
    folder = path.parent if path.name == MANIFEST else path
    file = folder / MANIFEST
    try:
        document = json.loads(file.read_text())
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ModelError("not a manifest of a format that this version reads", file=file)
        return Bundle(folder, _manifest(document))
    except OSError as error:
        raise ModelError(f"not a bundle: {error.strerror}", file=file) from None
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"damaged manifest: {error}", file=file) from None


def _manifest(document: Mapping[str, Any]) -> Manifest:
    parts = {
        "runtime_constants": TensorInfo,
        "cached": TensorInfo,
        "groups": Group,
        "kernels": Kernel,
        "stays": Stay,
    }
    read: dict[str, Any] = {
        key: [parts[key](**item) for item in value] if key in parts else value
        for key, value in document.items()
    }
    for kernel in read["kernels"]:
        for name in (kernel.file, *kernel.beside):
            if name is not None and (os.path.isabs(name) or ".." in Path(name).parts):
                raise ValueError(f"kernel file {name!r} is not in the bundle")
    return Manifest(**read)


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
