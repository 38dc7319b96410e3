"""The manifest of a split model, and its JSON form."""

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
"""The format of manifests that are written. From format 2, a component may have several kernels."""

READABLE = (1, FORMAT)
"""The formats that can be read."""

MANIFEST = "manifest.json"
ENTRY_FILE = "entry.onnx"
FOLD_FILE = "runtime_fold.onnx"
KERNELS = "kernels"
COMMITTED = ".bundle.onnxfold-new"
"""The folder with the files of a new bundle that are committed but not moved, see `bundle.py`."""

_MAX_TIME_RATIO = 1.05
"""Maximum time of a kernel relative to onnxruntime at which the kernel does not count as slower.

A kernel of equal speed has an advantage that is not measured: it allocates no memory.
"""

_MAX_DISTURBANCE = 8.0
"""Maximum ratio of wall times that other processes may cause if the CPU times do not differ."""


@dataclass(frozen=True)
class TensorInfo:
    """The name and type of an input of a part or of a kernel, or of a folded tensor."""

    name: str
    dtype: str
    """The ONNX name of the dtype in lower case, such as "float", "int64" or "bfloat16"."""
    shape: list[int | str | None] | None = None
    """Sizes, names of symbolic dimensions, or None for unknown sizes. None for an unknown rank."""
    nominal_bytes: int | None = None
    """Size in bytes at nominal sizes of symbolic dimensions. None if unknown."""
    optional: bool = False
    """Whether the tensor is an input with a default value."""
    rows: int | None = None
    """The number of rows that the tensor's elements may select: indices from -rows to rows - 1.

    None if the elements may have any value.
    """

    def takes(self, shape: Sequence[int]) -> bool:
        """Return whether the tensor may have a shape. Symbolic dimensions may have any size."""
        if self.shape is None:
            return True
        pairs = zip(self.shape, shape, strict=False)
        is_equal = all(not isinstance(dim, int) or dim == size for dim, size in pairs)
        return is_equal and len(self.shape) == len(shape)

    def __str__(self) -> str:
        from onnxfold.ir.graphs import shaped

        return shaped(numpy_name(self.dtype), self.shape)


@dataclass(frozen=True)
class Weight:
    """A runtime constant that is a weight of the model."""

    name: str
    parameter: str | None
    """The name in PyTorch, such as "layers.0.q_proj.lora_A.default.weight". None if unknown."""
    transposed: bool = False
    """Whether the weight is the transpose of the parameter in PyTorch."""
    scale: float | None = None
    """The factor of the product of an adapter's matrices. None for all but the second matrix."""


@dataclass(frozen=True)
class Group:
    """Folded tensors that depend on the same runtime constants, and therefore change together."""

    constants: list[str]
    outputs: list[str]
    components: list[list[str]]
    """The outputs by component. The outputs of a component share nodes, and one kernel can compute
    them."""


@dataclass(frozen=True)
class Kernel:
    """The kernel that a backend compiled for a component, or the reason why there is none."""

    backend: str
    """The name of the backend. "onnxruntime" if there is no kernel."""
    outputs: list[str]
    inputs: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    """Initializers of runtime_fold that are the last inputs of the kernel."""
    file: str | None = None
    """The path of the file to load, relative to the bundle. None if there is no kernel."""
    function: str = ""
    """The name of the function to call."""
    dtypes: list[str] = field(default_factory=list)
    """NumPy names of the dtypes of the outputs."""
    key: dict[str, str] = field(default_factory=dict)
    """The cache key of the kernel: hash of the graph, versions, CPU and flags."""
    reason: str | None = None
    """The reason why there is no kernel. None if there is a kernel."""
    max_error: float | None = None
    """Largest error relative to onnxruntime in the one-time check, see `largest_error`."""
    beside: list[str] = field(default_factory=list)
    """Paths of other files that the kernel reads, in the same folder as ``file``."""
    seconds: float | None = None
    """Minimum wall time of several runs of the kernel, in seconds."""
    onnxruntime_seconds: float | None = None
    """Wall time of onnxruntime in seconds: the geometric mean of two minima of several runs.

    The two minima are of runs with and without new memory for large results.
    """
    cpu_seconds: float | None = None
    """Minimum CPU time of several runs of the kernel in seconds, including all threads."""
    onnxruntime_cpu_seconds: float | None = None
    """CPU time of onnxruntime in seconds, including all threads: a mean of two minima as above."""
    timed_at: list[list[int]] | None = None
    """The shapes of the inputs at the nominal sizes at which the kernel was timed.

    If the kernel was also timed at larger sizes, the times are those of the less favorable sizes.
    """
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files of the kernel by name. Files with other hashes are not loaded."""
    takes: list[TensorInfo] = field(default_factory=list)
    """The types of the inputs. Symbolic dimensions with the same name must be equal."""
    memory: list[list[int | str]] = field(default_factory=list)
    """Estimated bytes of all values: a sum of products of numbers and symbolic dimensions."""

    def __post_init__(self) -> None:
        for name in (self.file, *self.beside):
            if name is not None and (os.path.isabs(name) or ".." in Path(name).parts):
                raise ValueError(f"kernel file {name!r} is outside of the bundle")

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Kernel:
        """Return the kernel that ``dataclasses.asdict`` converted to a dictionary.

        Raises:
            ValueError: As for `Manifest.from_dict`.
            TypeError: As for `Manifest.from_dict`.
        """
        kernel: Kernel = _read(cls, document, "kernel")
        return kernel

    @property
    def cpu(self) -> str:
        """The required CPU, see `onnxfold.runtime.backends.targets`. "" means any CPU."""
        return self.key.get("cpu", "")

    @property
    def is_slower(self) -> bool:
        """Whether onnxruntime is faster by more than the noise of timing. False without times.

        On a busy machine, the wall time of a kernel with threads includes the time in which its
        threads wait for a core. Therefore, the CPU time must also be longer, unless the wall times
        differ by a large factor.
        """
        if not self.seconds or not self.onnxruntime_seconds:
            return False
        wall = self.seconds / self.onnxruntime_seconds
        if wall <= _MAX_TIME_RATIO:
            return False
        if not self.cpu_seconds or not self.onnxruntime_cpu_seconds:
            return True
        cpu = self.cpu_seconds / self.onnxruntime_cpu_seconds
        return cpu > _MAX_TIME_RATIO or wall > _MAX_DISTURBANCE

    @property
    def files(self) -> list[str]:
        """The files of the kernel. The list is empty without a kernel."""
        return [] if self.file is None else [self.file, *self.beside]


@dataclass(frozen=True)
class Merge:
    """A possible merge of runtime constants with other constants, such as an adapter and a weight.

    After the merge, entry computes ``value`` from inputs and a tensor that runtime_fold computes.
    """

    value: str
    """The name of the value."""
    nbytes: int
    """Additional nominal bytes that are cached for each setting. Negative if fewer are cached."""
    nodes: int
    """Number of nodes by which the merge reduces entry."""
    reason: str | None = None
    """The reason why the merge was not applied. None if it was applied."""


@dataclass(frozen=True)
class StayingNode:
    """A node that remains in entry although it depends on runtime constants only."""

    node: str
    op: str
    reason: str


@dataclass
class Manifest:
    """The description of a split model.

    Attributes:
        runtime_constants: Inputs and weights of the original model that do not change in many runs.
        weights: The runtime constants that are weights.
        ranks: The ranks of the adapters in the model, by the names of the dimensions. The ranks are
            dynamic dimensions of weights.
        merges: The merges of runtime constants with other constants that were or could be applied.
        inputs: Names of the inputs of the original model, in order.
        outputs: Names of the outputs of the original model, in order.
        entry_inputs: Names of entry's inputs, including cached tensors.
        cached: Outputs of runtime_fold that are inputs of entry.
        groups: The same outputs, grouped by the runtime constants on which they depend.
        fold_at: "compile" if the constants were folded and both parts were optimized. "runtime" if
            runtime_fold computes the constants.
        nodes: Numbers of nodes of the original model, of entry and of runtime_fold.
        kernels: For each component, one kernel for each target CPU, or the reason why there is no
            kernel. Empty if nothing was compiled.
        stays: The nodes that remain in entry although they depend on runtime constants only, with
            the reasons.
        versions: The versions of the programs that wrote the bundle.
        hashes: SHA-256 of runtime_fold and its data file, with the key `FOLD_FILE`. Kernels are not
            used if the hash differs. Empty without runtime_fold, and for parts in memory.
        format: The format of the manifest, see `FORMAT`.
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
        """Size of the cached tensors in bytes, at nominal sizes. Unknown sizes count as 0."""
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
            ValueError: A value has a wrong type, a kernel is outside of the bundle, or the document
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
    """Return the document that was passed to `sealed`.

    Raises:
        ValueError: The document was changed after it was written, or has no digest.
    """
    written = _without_digest(document)
    if document.get("digest") != _digest(written):
        raise ValueError("it was changed after it was written")
    return written


def _without_digest(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "digest"}


def _digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the JSON text of a document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _read(kind: Any, value: Any, name: str) -> Any:
    """Convert a JSON value to its declared type ``kind``. Errors contain ``name``.

    Raises:
        ValueError: The value has a wrong type.
        TypeError: A field is missing or unknown.
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
