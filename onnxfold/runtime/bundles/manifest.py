"""The manifest: what a split model consists of, and how that is written as JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from onnxfold.onnxruntime_sessions import numpy_name

FORMAT = 1
"""A manifest of another one is refused."""

MANIFEST = "manifest.json"
ENTRY_FILE = "entry.onnx"
FOLD_FILE = "runtime_fold.onnx"
KERNELS = "kernels"
COMMITTED = ".bundle.onnxfold-new"
"""A folder with the files of a bundle that are to be moved to their places, see `staging`."""


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
    rows: int | None = None
    """Of indices: they are at least -rows, and less than rows."""

    def takes(self, shape: Sequence[int]) -> bool:
        """Return whether it can have a shape."""
        if self.shape is None:
            return True
        pairs = zip(self.shape, shape, strict=False)
        same = all(not isinstance(dim, int) or dim == size for dim, size in pairs)
        return same and len(self.shape) == len(shape)

    def __str__(self) -> str:
        from onnxfold.graphs import shaped

        return shaped(numpy_name(self.dtype), self.shape)


@dataclass(frozen=True)
class Weight:
    """A runtime constant that is a weight of the file."""

    name: str
    parameter: str | None
    """What PyTorch calls it, if that is known: "layers.0.q_proj.lora_A.default.weight"."""
    transposed: bool = False
    """Whether it is the transpose of what PyTorch has under that name."""
    scale: float | None = None
    """The number that the product of an adapter's two factors is multiplied by; of the second."""


@dataclass(frozen=True)
class Group:
    """Folded tensors that are made of the same runtime constants, and so change together."""

    constants: list[str]
    outputs: list[str]
    components: list[list[str]]
    """The outputs by which of them share a node's result: each can be a kernel of its own."""


@dataclass(frozen=True)
class Kernel:
    """What a backend made of one component, or why it did not.

    Raises:
        ValueError: One of its files would lie outside of the bundle.
    """

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
    seconds: float | None = None
    """The shortest of several runs."""
    onnxruntime_seconds: float | None = None
    """That of onnxruntime for the same, in turns with the kernel."""
    timed_at: list[list[int]] | None = None
    """The shapes of the inputs in these runs."""
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of its files by name: others are not loaded."""
    takes: list[TensorInfo] = field(default_factory=list)
    """What its inputs must be: sizes of the same name must be the same."""
    memory: list[list[int | str]] = field(default_factory=list)
    """The bytes of all its values: a sum of products of numbers and sizes of these names."""

    def __post_init__(self) -> None:
        for name in (self.file, *self.beside):
            if name is not None and (os.path.isabs(name) or ".." in Path(name).parts):
                raise ValueError(f"kernel file {name!r} is not in the bundle")

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Kernel:
        """Return what ``dataclasses.asdict`` has made of one.

        Raises:
            ValueError: Something is of another type, or a file lies outside of the bundle.
            TypeError: A field is missing, or there is no such field.
        """
        kernel: Kernel = _read(cls, document, "kernel")
        return kernel

    @property
    def is_slower(self) -> bool:
        """Whether onnxruntime is as fast, or faster."""
        if self.seconds is None or self.onnxruntime_seconds is None:
            return False
        return self.seconds >= self.onnxruntime_seconds

    @property
    def files(self) -> list[str]:
        """All its files; none if there is no kernel."""
        return [] if self.file is None else [self.file, *self.beside]


@dataclass(frozen=True)
class Merge:
    """A place where runtime constants can become part of other constants: an adapter of a weight.

    ``value`` is then made of what varies and a constant that is computed once.
    """

    value: str
    nbytes: int
    """Bytes that are cached for it, for each setting, at nominal sizes."""
    nodes: int
    """Nodes that entry does not run then."""
    reason: str | None = None
    """Why it is not done; None if it is."""


@dataclass(frozen=True)
class StayingNode:
    """A node that depends on runtime constants only but runs with entry, and why."""

    node: str
    op: str
    reason: str


@dataclass
class Manifest:
    """What is in a bundle.

    Attributes:
        runtime_constants: Inputs of the original that stay the same over many runs, and weights
            that do so.
        weights: Those that are weights.
        ranks: The sizes that weights have in the file along dimensions that are dynamic: the ranks
            of adapters, by the names of the dimensions.
        merges: Where runtime constants become part of other constants, or could.
        inputs: Names of the original's inputs, in order.
        outputs: Names of its outputs, in order.
        entry_inputs: Names of entry's inputs, cached tensors included.
        cached: Results of runtime_fold that are inputs of entry.
        groups: The same by the runtime constants that they depend on.
        nodes: Nodes of the original, of entry and of runtime_fold.
        kernels: What backends made of runtime_fold.
        stays: Why nodes were not moved to runtime_fold.
        versions: Of what made the bundle.
        hashes: SHA-256 of runtime_fold by its file's name: what kernels were made of, and what
            cached tensors are known by.
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
    stays: list[StayingNode] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    ranks: dict[str, int] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def cached_bytes(self) -> int:
        """Bytes of the cached tensors at nominal sizes."""
        return sum(info.nominal_bytes or 0 for info in self.cached)

    @property
    def components(self) -> list[list[str]]:
        """Outputs of runtime_fold by component."""
        return [names for group in self.groups for names in group.components]

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the manifest's file holds, with a digest of itself."""
        document = asdict(self)
        return {**document, "digest": _digest(document)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Manifest:
        """Return what was written by `to_dict`.

        Raises:
            ValueError: Something is of another type, a kernel lies outside of the bundle, or the
                document was changed after it was written.
            TypeError: A field is missing, or there is no such field.
        """
        written = {name: value for name, value in document.items() if name != "digest"}
        manifest: Manifest = _read(cls, written, "manifest")
        if document.get("digest") != _digest(written):
            raise ValueError("it was changed after it was written")
        return manifest


def _digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest as it is written."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _read(kind: Any, value: Any, name: str) -> Any:
    """Return what is written in JSON, as the type by which it is declared; or see
    `Manifest.from_dict`.
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
