"""The contents of a bundle: its models, its kernels, and the backends that run on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxfold.runtime.backends.selection import changed_model, damaged_file, usable_kernels
from onnxfold.runtime.backends.targets import default_cpu
from onnxfold.runtime.bundles.bundle import Bundle, open_bundle
from onnxfold.runtime.bundles.bundle_text import summary_lines
from onnxfold.runtime.bundles.manifest import ENTRY_FILE, FOLD_FILE, Kernel
from onnxfold.support.system import cpu_features
from onnxfold.support.tables import Printable, Table, bytes_text, first_of, time_text

_MAX_ROWS = 12  # of a table, without the row that counts the others


@dataclass(frozen=True)
class KernelEntry:
    """A kernel of a bundle, or the reason why a component has no kernel for a target CPU.

    Attributes:
        outputs: Names of the folded tensors that the kernel computes.
        backend: The backend that compiled the kernel, or "onnxruntime" without a kernel.
        target_cpu: The CPU that the kernel requires: a CPU level, the baseline of an architecture,
            or the architecture with a hash of CPU features. None if no CPU is recorded.
        bytes: Size of the kernel's files. None if there is no file or one is missing.
        seconds: Wall time of a run, measured after compilation. None without a measurement.
        onnxruntime_seconds: Wall time of the same computation on onnxruntime, or None.
        is_slower: Whether the kernel is slower than onnxruntime by more than the measurement noise.
        max_error: Largest error relative to onnxruntime in the check. None without a check.
        reason: The reason why the component was not compiled. None if it was compiled.
    """

    outputs: list[str]
    backend: str
    target_cpu: str | None
    bytes: int | None
    seconds: float | None
    onnxruntime_seconds: float | None
    is_slower: bool
    max_error: float | None
    reason: str | None


@dataclass(frozen=True)
class ComponentBackend:
    """The backend that computes a component on this machine when a session starts.

    Attributes:
        outputs: Names of the folded tensors of the component.
        backend: The backend of the kernel that runs, or "onnxruntime".
        target_cpu: The CPU that the kernel requires, as in `KernelEntry`. None for onnxruntime.
        reason: The reason why onnxruntime runs, or None for a kernel.
    """

    outputs: list[str]
    backend: str
    target_cpu: str | None
    reason: str | None


@dataclass(frozen=True, repr=False)
class BundleContents(Printable):
    """The contents of a bundle.

    Attributes:
        path: The folder.
        versions: Versions of the programs that wrote the bundle, by program.
        nodes: Numbers of nodes of the original model, of entry and of runtime_fold.
        runtime_constants: Names of the runtime constants.
        cached: Names of the folded tensors.
        cached_bytes: Bytes of the folded tensors at nominal sizes.
        entry_bytes: Bytes of entry, including its data file.
        runtime_fold_bytes: Bytes of runtime_fold, including its data file, or 0 without a fold.
        kernels: All kernels of the bundle, and the components without a kernel.
        cpu: The level of this CPU, or the architecture with a hash of the CPU's features.
        here: The backend of each component on this machine with ``backend="auto"``.
    """

    path: str
    versions: dict[str, str]
    nodes: dict[str, int]
    runtime_constants: list[str]
    cached: list[str]
    cached_bytes: int
    entry_bytes: int
    runtime_fold_bytes: int
    kernels: list[KernelEntry]
    cpu: str
    here: list[ComponentBackend]

    def _text_parts(self) -> Iterator[str | Table]:
        yield from summary_lines(
            self.path,
            self.nodes,
            self.runtime_constants,
            len(self.cached),
            self.cached_bytes,
        )
        writer = self.versions.get("onnxfold")
        written = f", written by onnxfold {writer}" if writer else ""
        yield (
            f"entry: {bytes_text(self.entry_bytes)}, runtime_fold: "
            f"{bytes_text(self.runtime_fold_bytes)}{written}"
        )
        if not self.here:
            return
        if self.kernels:
            rows = _grouped([(each.outputs, _kernel_row(each)) for each in self.kernels])
            titles = ("kernel of", "backend", "target CPU", ">bytes", ">kernel", ">onnxruntime", "")
            yield from ("", Table(titles, rows))
        backends = [
            (each.outputs, (each.backend, each.target_cpu or "", each.reason or ""))
            for each in self.here
        ]
        columns = (f"runs here ({self.cpu})", "backend", "target CPU", "reason")
        yield from ("", Table(columns, _grouped(backends)))


def take_contents(path: str | os.PathLike[str]) -> BundleContents:
    """Return the contents of a bundle, without loading its kernels.

    Raises:
        ModelError: The path is not a bundle, or the bundle is damaged.
    """
    bundle = open_bundle(path)
    manifest = bundle.manifest
    return BundleContents(
        path=bundle.name,
        versions=manifest.versions,
        nodes=manifest.nodes,
        runtime_constants=[info.name for info in manifest.runtime_constants],
        cached=[info.name for info in manifest.cached],
        cached_bytes=manifest.cached_bytes,
        entry_bytes=_bytes_of_model(bundle.folder / ENTRY_FILE),
        runtime_fold_bytes=_bytes_of_model(bundle.folder / FOLD_FILE) if manifest.groups else 0,
        kernels=[_entry_of(kernel, bundle.folder) for kernel in manifest.kernels],
        cpu=default_cpu() or cpu_features(),
        here=_component_backends(bundle),
    )


def _bytes_of_model(path: Path) -> int:
    """Return the size in bytes of a model and its data file. A missing file counts as 0."""
    files = (path, path.with_name(f"{path.name}.data"))
    return sum(file.stat().st_size for file in files if file.is_file())


def _entry_of(kernel: Kernel, folder: Path) -> KernelEntry:
    paths = [folder / name for name in kernel.files]
    is_complete = bool(paths) and all(path.is_file() for path in paths)
    return KernelEntry(
        outputs=kernel.outputs,
        backend=kernel.backend,
        target_cpu=kernel.cpu or None,
        bytes=sum(path.stat().st_size for path in paths) if is_complete else None,
        seconds=kernel.seconds,
        onnxruntime_seconds=kernel.onnxruntime_seconds,
        is_slower=kernel.is_slower,
        max_error=kernel.max_error,
        reason=kernel.reason,
    )


def _component_backends(bundle: Bundle) -> list[ComponentBackend]:
    manifest = bundle.manifest
    changed = changed_model(bundle)
    by_component = manifest.kernels_by_component
    components: list[ComponentBackend] = []
    for outputs in manifest.components:
        kernels = by_component.get(tuple(outputs), [])
        if not kernels:
            choice: Kernel | str = "it was not compiled"
        elif changed is not None and any(kernel.files for kernel in kernels):
            choice = changed
        else:
            choice = _starting_kernel(kernels, bundle.folder)
        if isinstance(choice, Kernel):
            entry = ComponentBackend(outputs, choice.backend, choice.cpu or None, None)
        else:
            entry = ComponentBackend(outputs, "onnxruntime", None, choice)
        components.append(entry)
    return components


def _starting_kernel(kernels: Sequence[Kernel], folder: Path) -> Kernel | str:
    """Return the kernel with which a session starts, or the reason why onnxruntime runs."""
    usable = usable_kernels(kernels)
    if isinstance(usable, str):
        return usable
    reasons: list[str] = []
    for kernel in usable:
        damage = damaged_file(kernel, folder)
        if damage is not None:
            reasons.append(damage)
        elif kernel.is_slower:
            return f"onnxruntime is faster than the kernel that {kernel.backend} compiled"
        else:
            return kernel
    return "; ".join(dict.fromkeys(reasons))


def _kernel_row(kernel: KernelEntry) -> tuple[str, ...]:
    times = (kernel.seconds, kernel.onnxruntime_seconds)
    size = "missing"
    if kernel.reason is not None:
        size = ""
    elif kernel.bytes is not None:
        size = bytes_text(kernel.bytes)
    return (
        kernel.backend,
        kernel.target_cpu or "",
        size,
        *("" if seconds is None else time_text(seconds) for seconds in times),
        kernel.reason or "",
    )


def _grouped(rows: Sequence[tuple[list[str], tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Return the rows of a table. Components with the same columns share a row.

    If there are more than `_MAX_ROWS` rows, one row counts the omitted rows.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    for outputs, columns in rows:
        names.setdefault(columns, []).append(", ".join(outputs))
    merged = [(first_of(components, 1), *columns) for columns, components in names.items()]
    omitted = len(merged) - _MAX_ROWS
    if omitted <= 0:
        return merged
    empty = [""] * (len(merged[0]) - 1)
    return [*merged[:_MAX_ROWS], (f"and {omitted} more: --json lists all", *empty)]
