"""The manifest, which describes a split model, and its JSON form."""

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

from onnxfold.support.onnxruntime_sessions import numpy_name

FORMAT = 2
"""The format of manifests that are written. A component has several kernels from format 2 on."""

READABLE = (1, FORMAT)
"""The formats that are read; others are refused."""

MANIFEST = "manifest.json"
ENTRY_FILE = "entry.onnx"
FOLD_FILE = "runtime_fold.onnx"
KERNELS = "kernels"
COMMITTED = ".bundle.onnxfold-new"
"""A folder with committed files of a bundle that still have to be moved, see `bundle.py`."""
_MOST_TIME = 1.05
"""Time of a kernel relative to onnxruntime's up to which it is not slower.

A kernel that is as fast needs no new memory, which its timing does not show.
"""
_MOST_DISTURBED = 8.0
"""Ratio of wall times that other processes may cause where CPU times show no difference."""


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that the caller, runtime_fold and entry exchange."""

    name: str
    dtype: str
    """The name in ONNX in lower case: "float", "int64", "bfloat16"."""
    shape: list[int | str | None] | None = None
    nominal_bytes: int | None = None
    """The size at nominal sizes of symbolic dimensions."""
    optional: bool = False
    """Whether it has a default value."""
    rows: int | None = None
    """For indices, the number of rows: they are at least -rows and less than rows."""

    def takes(self, shape: Sequence[int]) -> bool:
        """Return whether a shape is allowed."""
        if self.shape is None:
            return True
        pairs = zip(self.shape, shape, strict=False)
        same = all(not isinstance(dim, int) or dim == size for dim, size in pairs)
        return same and len(self.shape) == len(shape)

    def __str__(self) -> str:
        from onnxfold.ir.graphs import shaped

        return shaped(numpy_name(self.dtype), self.shape)


@dataclass(frozen=True)
class Weight:
    """A runtime constant that is a weight of the file."""

    name: str
    parameter: str | None
    """The name in PyTorch, if known: "layers.0.q_proj.lora_A.default.weight"."""
    transposed: bool = False
    """Whether the weight is the transpose of the parameter in PyTorch."""
    scale: float | None = None
    """For the second factor of an adapter, the number that their product is multiplied by."""


@dataclass(frozen=True)
class Group:
    """Folded tensors of the same runtime constants, which change together."""

    constants: list[str]
    outputs: list[str]
    components: list[list[str]]
    """The outputs, grouped by common nodes: each component can be compiled to a kernel."""


@dataclass(frozen=True)
class Kernel:
    """The kernel that a backend compiled for a component, or the reason why it did not."""

    backend: str
    outputs: list[str]
    inputs: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    """Initializers of runtime_fold that are the last inputs of the kernel."""
    file: str | None = None
    """The path in the bundle; None if there is no kernel, with the reason in ``reason``."""
    function: str = ""
    dtypes: list[str] = field(default_factory=list)
    """The names in NumPy of the dtypes of the outputs."""
    key: dict[str, str] = field(default_factory=dict)
    """The source and target of the kernel: graph hash, versions, CPU, flags."""
    reason: str | None = None
    max_error: float | None = None
    """Largest difference from onnxruntime in the one-time check, as a multiple of the tolerance."""
    beside: list[str] = field(default_factory=list)
    """Files in the same folder that the kernel reads."""
    seconds: float | None = None
    """The minimum wall time of several runs."""
    onnxruntime_seconds: float | None = None
    """The same for onnxruntime; its runs and those of the kernel alternate."""
    cpu_seconds: float | None = None
    """The minimum CPU time of the kernel's runs, all threads included."""
    onnxruntime_cpu_seconds: float | None = None
    """The same for onnxruntime."""
    timed_at: list[list[int]] | None = None
    """The shapes of the inputs in these runs."""
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of its files by name; other files are not loaded."""
    takes: list[TensorInfo] = field(default_factory=list)
    """The types of its inputs; symbolic dimensions of the same name must be equal."""
    memory: list[list[int | str]] = field(default_factory=list)
    """The bytes of all its values: a sum of products of numbers and symbolic dimensions."""

    def __post_init__(self) -> None:
        for name in (self.file, *self.beside):
            if name is not None and (os.path.isabs(name) or ".." in Path(name).parts):
                raise ValueError(f"kernel file {name!r} is not in the bundle")

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Kernel:
        """Return a kernel from a dict of ``dataclasses.asdict``, see `Manifest.from_dict`."""
        kernel: Kernel = _read(cls, document, "kernel")
        return kernel

    @property
    def cpu(self) -> str:
        """The CPU that it requires, see `onnxfold.runtime.backends.targets`; "" for any."""
        return self.key.get("cpu", "")

    @property
    def is_slower(self) -> bool:
        """Whether onnxruntime is faster by more than the noise of timing.

        On a busy machine, the wall time of a kernel with threads also has the time in which these
        wait for a core. So the CPU time must be longer, too, unless the wall times differ by far.
        """
        if not self.seconds or not self.onnxruntime_seconds:
            return False
        wall = self.seconds / self.onnxruntime_seconds
        if wall <= _MOST_TIME:
            return False
        if not self.cpu_seconds or not self.onnxruntime_cpu_seconds:
            return True
        cpu = self.cpu_seconds / self.onnxruntime_cpu_seconds
        return cpu > _MOST_TIME or wall > _MOST_DISTURBED

    @property
    def files(self) -> list[str]:
        """All its files; empty if there is no kernel."""
        return [] if self.file is None else [self.file, *self.beside]


@dataclass(frozen=True)
class Merge:
    """A place where runtime constants can be merged with other constants: an adapter with a weight.

    ``value`` is then computed from inputs and a constant that is computed once.
    """

    value: str
    nbytes: int
    """Nominal bytes cached for it, for each setting of the runtime constants."""
    nodes: int
    """Nodes that entry does not run after the merge."""
    reason: str | None = None
    """The reason why it was not merged; None if it was."""


@dataclass(frozen=True)
class StayingNode:
    """A node that depends on runtime constants only but stays in entry, with the reason."""

    node: str
    op: str
    reason: str


@dataclass
class Manifest:
    """The contents of a bundle.

    Attributes:
        runtime_constants: Inputs and weights of the original that are the same over many runs.
        weights: The weights among them.
        ranks: The sizes in the file of dynamic dimensions of weights, the ranks of adapters, by the
            names of the dimensions.
        merges: The places where runtime constants were or could be merged with other constants.
        inputs: Names of the original's inputs, in order.
        outputs: Names of its outputs, in order.
        entry_inputs: Names of entry's inputs, cached tensors included.
        cached: Outputs of runtime_fold that are inputs of entry.
        groups: The same, grouped by the runtime constants that they depend on.
        nodes: Numbers of nodes of the original, of entry and of runtime_fold.
        kernels: Compiled parts of runtime_fold: one kernel of each component for each target CPU.
        stays: The nodes that could not be moved to runtime_fold, with the reasons.
        versions: The versions of the programs that wrote the bundle.
        hashes: SHA-256 of runtime_fold by file name, for kernels and the keys of cached tensors.
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

    @property
    def kernels_by_component(self) -> dict[tuple[str, ...], list[Kernel]]:
        """The kernels, grouped by the outputs of their component."""
        grouped: dict[tuple[str, ...], list[Kernel]] = {}
        for kernel in self.kernels:
            grouped.setdefault(tuple(kernel.outputs), []).append(kernel)
        return grouped

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the manifest file, including a digest of itself."""
        return sealed(asdict(self))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Manifest:
        """Return the manifest of a document that `to_dict` wrote.

        Raises:
            ValueError: A value has another type, a kernel is outside of the bundle, or the document
                was changed after it was written.
            TypeError: A field is missing or unknown.
        """
        manifest: Manifest = _read(cls, _without_digest(document), "manifest")
        unsealed(document)
        manifest.format = FORMAT  # older formats have the same fields
        return manifest


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON document with a digest of itself."""
    return {**document, "digest": _digest(document)}


def unsealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document that `sealed` was given.

    Raises:
        ValueError: The document was changed after it was written.
    """
    written = _without_digest(document)
    if document.get("digest") != _digest(written):
        raise ValueError("it was changed after it was written")
    return written


def _without_digest(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "digest"}


def _digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a document as it is written."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _read(kind: Any, value: Any, name: str) -> Any:
    """Return a JSON value converted to its declared type; raises like `Manifest.from_dict`."""
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
