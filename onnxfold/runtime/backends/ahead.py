"""Compiling runtime_fold ahead of time: component by component, each checked once."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxfold import storage
from onnxfold.errors import OnnxFoldError, UsageError
from onnxfold.runtime.backends import kernel_cache
from onnxfold.runtime.backends.base import Backend, CompileError, weights_of
from onnxfold.runtime.backends.check import check_kernel, draws, least_of, nominal_sizes, shape_of
from onnxfold.runtime.backends.component import Component
from onnxfold.runtime.backends.process import Progress, side_by_side, work_folder
from onnxfold.runtime.backends.registry import compilers, create
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import FOLD_FILE, KERNELS, Kernel
from onnxfold.runtime.splitting.parts import RuntimeFold

logger = logging.getLogger("onnxfold")


def compile_kernels(
    bundle: Bundle,
    backend: str,
    options: Sequence[str] = (),
    *,
    seconds: float,
    nominal: Mapping[str, int],
    progress: Progress | None = None,
) -> list[Kernel]:
    """Return kernels for the components of runtime_fold, or the reasons why there are none.

    Components that differ in names and weights only share a kernel, which is made once.

    Args:
        bundle: The split model; kernels are written below its folder.
        backend: "auto" for those that were compiled before and can be run here, for each
            component the fastest; or the name of a backend that compiles.
        options: For its compiler.
        seconds: Time limit of one compilation.
        nominal: Sizes of symbolic dimensions at which kernels are checked and timed.
        progress: Called in this thread with "compile" or "time", the kernels done and all of them.
    """
    work = functools.partial(_Work, bundle, seconds=seconds, nominal=nominal)
    if backend == "auto":
        if not kernel_cache.cache_folder().is_dir():
            return []
        works = [work(compiler) for compiler in compilers()]
        parts = [part for part in _components(bundle) if part.demands.reason is None]
        fastest = {h: _fastest(works, part) for h, part in _distinct(parts).items()}
        taken = [(fastest[part.graph_hash], part) for part in parts]
        return [_renamed(kernel, part) for kernel, part in taken if kernel is not None]
    compiler = create(backend, options)
    missing = compiler.missing()
    if missing is not None:
        return [Kernel("onnxruntime", n, reason=missing) for n in bundle.manifest.components]
    reasons = {
        part: "; ".join(compiler.supported(part.model)) or part.demands.reason
        for part in _components(bundle)
    }
    distinct = _distinct([part for part, reason in reasons.items() if not reason])
    made = work(compiler, maker=compiler.maker()).kernels(distinct, progress)
    return [
        Kernel("onnxruntime", part.outputs, reason=reason)
        if reason
        else _renamed(made[part.graph_hash], part)
        for part, reason in reasons.items()
    ]


def dump_stages(
    bundle: Bundle, backend: str, options: Sequence[str], folder: Path, *, seconds: float
) -> None:
    """Write each component, and what the compiler makes of it, into a folder of its own.

    Raises:
        UsageError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for index, part in enumerate(_components(bundle)):
            own = folder / f"component_{index}"
            own.mkdir(exist_ok=True)
            (own / "0-prepared.onnx").write_bytes(part.content)
            try:
                create(backend, options).dump(part.content, own, seconds=seconds)
            except CompileError as error:
                logger.warning("there are no more stages of %s: %s", part.outputs[0], error)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=folder) from error


def _components(bundle: Bundle) -> list[Component]:
    fold = RuntimeFold(bundle.load(FOLD_FILE))
    return [Component(fold, names) for names in bundle.manifest.components]


def _distinct(parts: Sequence[Component]) -> dict[str, Component]:
    """By hash, the first of those that differ in names and weights only."""
    return {part.graph_hash: part for part in reversed(parts)}


def _renamed(kernel: Kernel, part: Component) -> Kernel:
    """Return a kernel with the names of a component; without a file, it has the reason."""
    return dataclasses.replace(
        kernel,
        outputs=part.outputs,
        inputs=part.inputs,
        weights=part.weights,
        takes=part.demands.inputs,
        memory=part.demands.memory,
    )


def _refused(part: Component, error: Exception) -> Kernel:
    reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    logger.info("%s stays with onnxruntime: %s", part.outputs[0], reason)
    return Kernel("onnxruntime", part.outputs, reason=reason)


def _fastest(works: Sequence[_Work], part: Component) -> Kernel | None:
    """Return the fastest kernel that is kept for a component."""
    taken = [(work, work.taken(part)) for work in works]
    found = [work.checked(kernel, part) for work, kernel in taken if kernel is not None]
    kernels = sorted(
        (kernel for kernel in found if kernel.file is not None),
        key=lambda kernel: math.inf if kernel.seconds is None else kernel.seconds,
    )
    for kernel in kernels[1:]:
        works[0].remove(kernel)
    return kernels[0] if kernels else None


class _Work:
    """What one backend does for a bundle.

    Args:
        bundle: The bundle.
        backend: The backend.
        seconds: Time limit of a compilation, and of trying a kernel.
        nominal: Sizes of symbolic dimensions by name; others are 1 for a batch and 64.
        maker: The compiler that must have made a kernel; None for any.
    """

    def __init__(
        self,
        bundle: Bundle,
        backend: Backend,
        *,
        seconds: float,
        nominal: Mapping[str, int],
        maker: str | None = None,
    ) -> None:
        self._folder = bundle.folder
        self._backend = backend
        self._seconds = seconds
        self._nominal = nominal
        self._maker = maker

    def kernels(
        self, parts: Mapping[str, Component], progress: Progress | None
    ) -> dict[str, Kernel]:
        """Kernels by the hashes of components, kept or made now; without a file, why there is none.

        They are timed when all are compiled: what compiles meanwhile would be measured, too.
        """
        jobs = [functools.partial(self._kernel, part) for part in parts.values()]
        compiled = side_by_side(jobs, "compile", progress)
        kernels: dict[str, Kernel] = {}
        for (hash_, part), kernel in zip(parts.items(), compiled, strict=True):
            kernels[hash_] = self.checked(kernel, part)
            if progress is not None:
                progress("time", len(kernels), len(parts))
        return kernels

    def taken(self, part: Component) -> Kernel | None:
        """Return the kernel that is kept for a component, if it can be run here."""
        key = self._backend.key_of(part.graph_hash)
        if self._backend.unusable(key):
            return None
        kernel = kernel_cache.take(kernel_cache.name_of(key), self._folder, self._maker)
        return kernel and _renamed(kernel, part)

    def _kernel(self, part: Component) -> Kernel:
        """Return a component's kernel, kept or compiled; without a file, it has the reason."""
        kernel = self.taken(part)
        if kernel is not None:
            return kernel
        key = {**self._backend.key_of(part.graph_hash), "maker": self._maker or ""}
        try:
            target = self._folder / KERNELS / kernel_cache.name_of(key)
            target.parent.mkdir(exist_ok=True)
            built = self._backend.compile(part.content, target, seconds=self._seconds)
            files = [f"{KERNELS}/{path.name}" for path in built.files]
            hashes = kernel_cache.hashes_of(files, self._folder)
        except (CompileError, OSError) as error:
            return _refused(part, error)
        kernel = Kernel(
            backend=self._backend.name,
            outputs=part.outputs,
            file=files[0],
            function=built.function,
            dtypes=part.dtypes,
            key=key,
            beside=files[1:],
            hashes=hashes,
        )
        return _renamed(kernel, part)

    def checked(self, kernel: Kernel, part: Component) -> Kernel:
        """Return a kernel with its error and times; without a file if it is wrong."""
        takes = part.demands.inputs
        sizes = nominal_sizes(takes, self._nominal)
        timed_at = [shape_of(info, sizes) for info in takes]
        if kernel.file is None or kernel.timed_at == timed_at:
            return kernel
        name = kernel_cache.name_of(self._backend.key_of(part.graph_hash))
        try:
            inputs = draws(part.original.graph.inputs, part.demands, self._nominal)
            weights = list(weights_of(part.original.graph.initializers, part.weights).values())
            with work_folder() as scratch:
                model = scratch / "model.onnx"  # weights go from file to file
                storage.save(part.original, model, external_data=True, fsync=False)
                error, ours, theirs = check_kernel(
                    *(kernel, self._folder, model, inputs, weights),
                    least=least_of(part.original),
                    seconds=self._seconds,
                )
        except (CompileError, OnnxFoldError) as failure:
            kernel_cache.forget(name)
            self.remove(kernel)
            return _refused(part, failure)
        kernel = dataclasses.replace(
            kernel, max_error=error, seconds=ours, onnxruntime_seconds=theirs, timed_at=timed_at
        )
        kernel_cache.keep(name, kernel, self._folder)
        return kernel

    def remove(self, kernel: Kernel) -> None:
        """Remove the files of a kernel from the bundle."""
        for file in kernel.files:
            (self._folder / file).unlink(missing_ok=True)
