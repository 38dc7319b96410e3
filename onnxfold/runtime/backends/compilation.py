"""Compile the components of runtime_fold ahead of time, check the kernels, and cache them.

The cache is a folder of the user, which all bundles share. A cached kernel is a folder that
contains the files of the kernel and its description. The folder is created atomically, and it may
be removed at any moment. `dump_stages` writes the stages of compilations for users.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from importlib import metadata
from pathlib import Path
from typing import Any

from onnxfold.analysis.costs import NOMINAL
from onnxfold.api.signatures import Progress
from onnxfold.runtime.backends.base import (
    NOT_COMPILING,
    Backend,
    CompileError,
    create,
    first_installed,
)
from onnxfold.runtime.backends.component import Component, reasons_not_to_compile
from onnxfold.runtime.backends.kernel_check import check_kernel, draws, shape_of
from onnxfold.runtime.backends.targets import targets_of
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.in_memory import InMemoryBundle, deserialized
from onnxfold.runtime.bundles.manifest import (
    ENTRY_FILE,
    FOLD_FILE,
    KERNELS,
    Kernel,
    Manifest,
    sealed,
    unsealed,
)
from onnxfold.support import files, isolated
from onnxfold.support.errors import OnnxFoldError, UsageError
from onnxfold.support.file_contents import hash_file
from onnxfold.support.system import CPU_LEVELS, lower_priority, processors
from onnxfold.support.user_caches import bytes_allowed, put, touch, user_folder
from onnxfold.tools.comparison.dims import usual_sizes
from onnxfold.tools.dump import dot_of

logger = logging.getLogger("onnxfold")

_DESCRIPTION = "kernel.json"
"""Name of the file in a cached kernel's folder that contains the fields of its `Kernel`."""


def compile_kernels(
    bundle: Bundle,
    backend: str,
    options: Sequence[str] = (),
    *,
    target_cpu: str | Sequence[str] | None = None,
    seconds: float,
    nominal: Mapping[str, int],
    progress: Progress | None = None,
) -> list[Kernel]:
    """Compile the components of runtime_fold, check the kernels, and time them at nominal sizes.

    The files of the kernels are written below the folder of the bundle. Components that differ only
    in names and weights share their kernels. Kernels in the user's cache are not compiled again.

    Args:
        bundle: The split model.
        backend: The name of the backend. "auto" selects the first built-in backend whose compiler
            is installed, and only compiles components that a kernel is likely to speed up.
        options: Options of the compiler.
        target_cpu: The target CPUs. None selects the default of the backend.
        seconds: The time limit of each compilation and of each check, in seconds.
        nominal: Nominal sizes of symbolic dimensions by name.
        progress: Called with "compile" or "time", and the numbers of completed and of all kernels.

    Returns:
        One `Kernel` of each component for each target. If the compilation or the check fails, the
        `Kernel` has a reason and no files. A component that is not passed to a compiler has one
        such `Kernel` for all targets. The list is empty if "auto" finds no compiler.
    """
    components, nominal = bundle.manifest.components, {**bundle.manifest.ranks, **nominal}
    name = first_installed() if backend == "auto" else backend
    if name is None:
        return []
    compilers = _compilers(name, options, target_cpu)
    missing = compilers[0].missing()
    if missing is not None:
        return [Kernel("onnxruntime", names, reason=missing) for names in components]
    fold = bundle.load(FOLD_FILE)
    not_compiled = reasons_not_to_compile(fold, components, nominal) if backend == "auto" else {}
    parts = {}
    for names in [names for names in components if names[0] not in not_compiled]:
        part = Component(fold, names)
        reason = "; ".join(compilers[0].supported(part.model)) or part.demands.reason
        if reason:
            not_compiled[names[0]] = reason
        else:
            parts[names[0]] = part
    distinct = {part.graph_hash: part for part in parts.values()}
    jobs = [(part, compiler) for part in distinct.values() for compiler in compilers]
    folder = bundle.folder
    report = progress or (lambda stage, done, total: None)
    # the processes of the compilers end with this block, even after an exception
    with isolated.workers(max(1, min(processors(), len(jobs)))) as executor:
        futures = [executor.submit(_compile, *job, folder, seconds) for job in jobs]
        report("compile", 0, len(jobs))
        for done, _ in enumerate(as_completed(futures), 1):
            report("compile", done, len(jobs))
    kernels_by_graph: dict[str, list[Kernel]] = {}
    # kernels are timed after all compilations, because running compilers would disturb the timing
    for done, ((part, _), future) in enumerate(zip(jobs, futures, strict=True), 1):
        kernel = _check(future.result(), part, folder, seconds, nominal)
        kernels_by_graph.setdefault(part.graph_hash, []).append(kernel)
        report("time", done, len(jobs))
    kernels: list[Kernel] = []
    for names in components:
        part_of_names = parts.get(names[0])
        if part_of_names is None:
            kernels.append(Kernel("onnxruntime", names, reason=not_compiled[names[0]]))
        else:
            alternatives = kernels_by_graph[part_of_names.graph_hash]
            kernels += [_renamed(kernel, part_of_names) for kernel in alternatives]
    return kernels


def _compilers(
    name: str, options: Sequence[str], target_cpu: str | Sequence[str] | None
) -> list[Backend]:
    """Return a compiler for each target, or only the first one if it is not installed.

    Targets share a compiler if their kernels require the same CPU level or have the same keys.
    """
    compilers = [create(name, options, target) for target in targets_of(target_cpu)]
    if len(compilers) == 1 or compilers[0].missing() is not None:
        return compilers[:1]
    distinct: dict[str, Backend] = {}
    for compiler in compilers:
        key = compiler.key_of("")
        cpu = key.get("cpu")
        distinct.setdefault(cpu if cpu in CPU_LEVELS else json.dumps(key, sort_keys=True), compiler)
    return [*distinct.values()]


def compile_with_low_priority(
    request: Sequence[Any], arrays: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Compile kernels with the backend "auto", at a low priority.

    Callers run this function in a separate process, because it lowers the priority of its process.

    Args:
        request: The manifest as a dict, the folder for the kernels, the time limit in seconds, the
            nominal sizes, and the target CPUs.
        arrays: One array with the bytes of runtime_fold, see `InMemoryBundle.serialized`.

    Returns:
        The kernels as dicts, and no arrays.
    """
    document, folder, seconds, nominal, target_cpu = request
    lower_priority()
    fold = deserialized(arrays[0].tobytes())
    bundle = InMemoryBundle(Manifest.from_dict(document), fold, fold, folder=Path(folder))
    kernels = compile_kernels(
        bundle, "auto", target_cpu=target_cpu, seconds=seconds, nominal=nominal
    )
    return [dataclasses.asdict(kernel) for kernel in kernels], []


def dump_stages(
    bundle: Bundle,
    backend: str,
    options: Sequence[str],
    folder: Path,
    *,
    target_cpu: str | Sequence[str] | None = None,
    seconds: float,
) -> None:
    """Write the graphs of the parts in the DOT format, and the compilation stages of components.

    Each component has a folder. With several targets, this folder contains a folder for each
    target. The backends "auto" and "onnxruntime" have no stages. If a compilation fails, a warning
    names the component, and the following stages are missing.

    Args:
        bundle: The split model.
        backend: The name of the backend.
        options: Options of the compiler.
        folder: The folder for the files. It is created if it does not exist.
        target_cpu: The target CPUs. None selects the default of the backend.
        seconds: The time limit of each run of the compiler, in seconds.

    Raises:
        UsageError: A file cannot be written.
    """
    manifest = bundle.manifest
    components = [] if backend in NOT_COMPILING else manifest.components
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in (ENTRY_FILE, FOLD_FILE) if manifest.groups else (ENTRY_FILE,):
            name = file.removesuffix(".onnx")
            text = dot_of(bundle.load(file), name)
            (folder / f"{name}.dot").write_bytes(text.encode(errors="backslashreplace"))
        for index, names in enumerate(components):
            part = Component(bundle.load(FOLD_FILE), names)
            component_folder = folder / f"component_{index}"
            component_folder.mkdir(exist_ok=True)
            (component_folder / "0-prepared.onnx").write_bytes(part.content)
            targets = targets_of(target_cpu)
            for target in targets:
                stages = component_folder / target if len(targets) > 1 else component_folder
                stages.mkdir(exist_ok=True)
                try:
                    create(backend, options, target).dump(part.content, stages, seconds=seconds)
                except CompileError as error:
                    message = "the compilation stages of %s are incomplete: %s"
                    logger.warning(message, part.outputs[0], error)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=folder) from error


def _renamed(kernel: Kernel, part: Component) -> Kernel:
    """Return a copy of a kernel for a component with the same graph hash.

    The copy has the names and the input requirements of the component.
    """
    return dataclasses.replace(
        kernel,
        outputs=part.outputs,
        inputs=part.inputs,
        weights=part.weights,
        takes=part.demands.inputs,
        memory=part.demands.memory,
    )


def _not_compiled(part: Component, key: Mapping[str, str], error: Exception) -> Kernel:
    """Log the reason why a component has no kernel, and return it as a `Kernel` without files."""
    reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    logger.info("onnxruntime computes %s: %s", part.outputs[0], reason)
    return Kernel("onnxruntime", part.outputs, key=dict(key), reason=reason)


def _compile(part: Component, backend: Backend, folder: Path, seconds: float) -> Kernel:
    """Return the kernel of a component from the cache, or compile the component.

    If the compilation fails, the result has a reason and no files.
    """
    key = backend.key_of(part.graph_hash)
    name = kernel_name(key)
    kernel = take_kernel(name, folder)
    if kernel is not None:
        return kernel
    try:
        target = folder / KERNELS / name
        target.parent.mkdir(exist_ok=True)
        built = backend.compile(part.content, target, seconds=seconds)
        names = [f"{KERNELS}/{path.name}" for path in built.files]
        hashes = hashes_of(names, folder)
    except (CompileError, OSError) as error:
        return _not_compiled(part, key, error)
    return Kernel(
        backend=backend.name,
        outputs=part.outputs,
        file=names[0],
        function=built.function,
        dtypes=part.dtypes,
        key=key,
        beside=names[1:],
        hashes=hashes,
    )


def _check(
    kernel: Kernel, part: Component, folder: Path, seconds: float, nominal: Mapping[str, int]
) -> Kernel:
    """Check and time a kernel, and write it to the cache, unless this was done at the same sizes.

    If the check fails, the files of the kernel are removed from the bundle and from the cache.

    Returns:
        The kernel with its error and its times. If the check fails, the result has a reason and no
        files.
    """
    sizes = usual_sizes(part.demands.sizes, nominal, NOMINAL)
    timed_at = [shape_of(info, sizes) for info in part.demands.inputs]
    if kernel.file is None or kernel.timed_at == timed_at:
        return kernel
    kernel, name = _renamed(kernel, part), kernel_name(kernel.key)
    try:
        inputs = draws(part.original.graph.inputs, part.demands, nominal)
        error, times = check_kernel(kernel, folder, part.original, inputs, seconds=seconds)
    except (CompileError, OnnxFoldError) as failure:
        forget_kernel(name)
        for file in kernel.files:
            (folder / file).unlink(missing_ok=True)
        return _not_compiled(part, kernel.key, failure)
    kernel = dataclasses.replace(
        kernel,
        max_error=error,
        seconds=times.kernel,
        onnxruntime_seconds=times.onnxruntime,
        cpu_seconds=times.kernel_cpu,
        onnxruntime_cpu_seconds=times.onnxruntime_cpu,
        timed_at=timed_at,
    )
    keep_kernel(name, kernel, folder)
    return kernel


def kernel_name(key: Mapping[str, str]) -> str:
    """Return the name of a cached kernel: 32 hexadecimal digits.

    The name depends on the key of the kernel, and on the versions of onnxfold and onnxruntime. They
    are included because both programs take part in the check and the timing.
    """
    document = dict(key) | {name: metadata.version(name) for name in ("onnxfold", "onnxruntime")}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def hashes_of(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the SHA-256 of files by name. Names are relative to the folder."""
    return {name: hash_file(folder / name) for name in names}


def take_kernel(name: str, folder: Path) -> Kernel | None:
    """Copy the files of a cached kernel into a bundle's folder.

    Returns:
        The kernel. None if it is not in the cache, is damaged, or cannot be copied. A damaged
        kernel is removed from the cache.
    """
    entry = kernel_folder() / name
    try:
        document = json.loads((entry / _DESCRIPTION).read_bytes())
        if not isinstance(document, dict):
            raise ValueError("its description is not a JSON object")
        kernel = Kernel.from_dict(unsealed(document))
        if not kernel.files or any(os.path.dirname(file) != KERNELS for file in kernel.files):
            raise ValueError(f"a file is not in the folder {KERNELS}")
        (folder / KERNELS).mkdir(parents=True, exist_ok=True)
        for file in kernel.files:  # an existing file is not overwritten, because it may be in use
            with files.replacing(str(folder / file)) as copy:
                copy.write((entry / os.path.basename(file)).read_bytes())
        if hashes_of(kernel.files, folder) != kernel.hashes:
            raise ValueError("a file was changed")
    except OSError as error:
        logger.debug("the cached kernel %s cannot be read: %s", name, error)
        return None
    except (ValueError, TypeError, RecursionError) as error:
        forget_kernel(name)
        logger.info("the cached kernel %s is damaged and was removed: %s", name, error)
        return None
    touch(entry)
    return kernel


def keep_kernel(name: str, kernel: Kernel, folder: Path) -> None:
    """Write a kernel to the cache. An existing kernel with the same name is replaced.

    If the cache exceeds its size limit, the least recently used kernels are removed. If the kernel
    alone exceeds the limit, or if the cache cannot be written, nothing is written.
    """
    cache = kernel_folder()
    limit = bytes_allowed("ONNXFOLD_KERNEL_CACHE_BYTES", 1 << 30)
    try:
        if sum((folder / file).stat().st_size for file in kernel.files) > limit:
            return
        cache.mkdir(parents=True, exist_ok=True)
        with files.scratch_folder("kernel", parent=str(cache)) as new:
            description = json.dumps(sealed(dataclasses.asdict(kernel)))
            Path(new, _DESCRIPTION).write_text(description, encoding="utf-8")
            for file in kernel.files:
                shutil.copyfile(folder / file, os.path.join(new, os.path.basename(file)))
            put(new, str(cache / name), limit)
    except OSError as failure:
        logger.info("the kernel is not cached: %s", failure)


def forget_kernel(name: str) -> None:
    """Remove a kernel from the cache."""
    shutil.rmtree(kernel_folder() / name, ignore_errors=True)


def kernel_folder() -> Path:
    """Return the path of the cache folder for kernels. The folder may not exist."""
    return user_folder(KERNELS)
