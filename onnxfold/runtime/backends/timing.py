"""How long kernels take, and onnxruntime for the same: measured in a process of their own."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.compare.dims import concrete
from onnxfold.compare.random_feeds import RandomFeeds
from onnxfold.errors import UsageError
from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.component import Component
from onnxfold.runtime.backends.folder import work_folder
from onnxfold.runtime.backends.process import run_child
from onnxfold.runtime.backends.side_by_side import Progress
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.runtime.splitting.sizes import NOMINAL

logger = logging.getLogger("onnxfold")

_COMMAND = [sys.executable, "-m", "onnxfold.runtime.backends.timing_child"]

_AT_A_TIME = 8  # kernels that one process times
_BATCH = 1  # of a symbolic dimension that is a batch and that the caller names no size for


def shapes_of(component: Component, nominal: Mapping[str, int]) -> list[list[int]]:
    """The shapes of a component's inputs at which its kernel is timed."""
    sizes = _sizes(component, nominal)
    return [list(concrete(v, sizes)) for v in component.original.graph.inputs]


def timed(
    kernels: Sequence[tuple[Kernel, Component]],
    folder: Path,
    nominal: Mapping[str, int],
    seconds: float,
    progress: Progress | None = None,
) -> list[Kernel]:
    """Kernels with their times; a kernel that ends the process that it runs in becomes a reason.

    Args:
        kernels: Kernels with a file, and components that they are for.
        folder: The folder that their files are named from.
        nominal: Sizes of symbolic dimensions by name; others are 1 for a batch and 64.
        seconds: Time limit for each.
        progress: Called in this thread with "time".
    """
    done: list[Kernel] = []
    while some := kernels[len(done) : len(done) + _AT_A_TIME]:
        try:
            with work_folder() as scratch:
                done += _some(some, scratch, folder, nominal, seconds)
        except CompileError as error:  # there is no room for the model
            logger.info("%d kernels are not timed: %s", len(some), error)
            done += [kernel for kernel, _ in some]
        if progress is not None:
            progress("time", len(done), len(kernels))
    return done


def _some(
    kernels: Sequence[tuple[Kernel, Component]],
    scratch: Path,
    folder: Path,
    nominal: Mapping[str, int],
    seconds: float,
) -> list[Kernel]:
    """As `timed`, in one process; what comes behind a kernel that ends it is left out."""
    documents = [
        {**_prepared(kernel, part, scratch / f"{k}", nominal), "folder": str(folder.resolve())}
        for k, (kernel, part) in enumerate(kernels)
    ]
    (scratch / "kernels.json").write_text(json.dumps(documents))
    results = scratch / "times.jsonl"
    results.touch()
    reason = ""
    try:
        run_child([*_COMMAND, str(scratch)], seconds * len(kernels), scratch, what="the kernel")
    except CompileError as error:
        reason = f"{error} when it was timed"
    lines = results.read_text().splitlines()
    done = []
    for (kernel, part), line in zip(kernels, lines, strict=False):
        times = json.loads(line)
        if times is not None:
            ours, theirs = times
            kernel = dataclasses.replace(
                kernel,
                seconds=ours,
                onnxruntime_seconds=theirs,
                timed_at=shapes_of(part, nominal),
            )
        done.append(kernel)
    if len(lines) < len(kernels):
        kernel, _ = kernels[len(lines)]
        logger.info("%s stays with onnxruntime: %s", kernel.outputs[0], reason)
        done.append(Kernel("onnxruntime", kernel.outputs, reason=reason))
    return done


def _prepared(
    kernel: Kernel, component: Component, stem: Path, nominal: Mapping[str, int]
) -> dict[str, Any]:
    """Write the model, inputs and weights of a kernel; what is called like what, for the child."""
    model = component.original
    storage.save(model, stem.with_suffix(".onnx"), external_data=True, fsync=False)
    inputs = list(model.graph.inputs)
    try:
        feeds = RandomFeeds(model, inputs).make(0, _sizes(component, nominal))
    except UsageError as error:
        logger.info("%s is not timed: %s", component.outputs[0], error)
        feeds = {}
    given = {**feeds, **component.weight_arrays()}
    arrays = {name: array for name, array in given.items() if isinstance(array, np.ndarray)}
    named: dict[str, Any] = {f"{k}": array for k, array in enumerate(arrays.values())}
    np.savez(stem.with_suffix(".npz"), **named)
    return {
        "kernel": dataclasses.asdict(kernel),
        "stem": str(stem),
        "dtypes": {name: array.dtype.name for name, array in arrays.items()},
    }


def _sizes(component: Component, nominal: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the symbolic dimensions of the inputs; those that must agree do."""
    sizes: dict[str, int] = {}
    for value, info in zip(component.original.graph.inputs, component.demands.inputs, strict=True):
        for dim, name in zip(value.shape or (), info.shape or (), strict=True):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                sizes[dim.value] = _size(name, nominal)
    return sizes


def _size(name: int | str | None, nominal: Mapping[str, int]) -> int:
    if isinstance(name, int):
        return name
    return nominal.get(name or "", _BATCH if "batch" in (name or "").lower() else NOMINAL)
