"""Trying a kernel in a process of its own: wrong code ends the process that calls it.

``python -m onnxfold.runtime.backends.trial FOLDER`` reads ``kernel.json`` (the kernel, and the
folder that its files are named from), ``weights.npz`` and the inputs of each call, ``0.npz`` and so
on, and writes the results beside them. What went wrong goes to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows more names of types by it
import numpy as np

from onnxfold.runtime.backends.folder import work_folder
from onnxfold.runtime.backends.process import one_line, run_child
from onnxfold.runtime.backends.registry import create
from onnxfold.runtime.backends.values import array_of
from onnxfold.runtime.bundles.manifest import Kernel

_COMMAND = [sys.executable, "-m", "onnxfold.runtime.backends.trial"]


def tried(
    kernel: Kernel,
    folder: Path,
    calls: Sequence[Sequence[Any]],
    weights: Sequence[Any],
    seconds: float,
) -> list[list[Any]]:
    """Results of calls of a kernel, one after the other in the same process.

    Args:
        kernel: The kernel, with a file.
        folder: The folder that its files are named from.
        calls: For each its inputs.
        weights: Its weights.
        seconds: Time limit.

    Returns:
        Arrays; those of types that NumPy itself has not as words of the same size.

    Raises:
        CompileError: It does not load, fails, crashes, or takes too long.
    """
    with work_folder() as scratch:
        dtypes = [array.dtype.name for array in (*calls[0], *weights)]
        document = {
            "kernel": asdict(kernel),
            "folder": str(folder.resolve()),
            "dtypes": dtypes,
            "calls": len(calls),
        }
        (scratch / "kernel.json").write_text(json.dumps(document))
        _write(scratch / "weights.npz", weights)
        for k, arrays in enumerate(calls):
            _write(scratch / f"{k}.npz", arrays)
        run_child([*_COMMAND, str(scratch)], seconds, scratch, what="the kernel")
        return [_read(scratch / f"{k}.results.npz") for k in range(len(calls))]


def main(scratch: Path) -> None:
    """Call the kernel, and keep what it returns."""
    document = json.loads((scratch / "kernel.json").read_text())
    kernel, dtypes = Kernel.from_dict(document["kernel"]), document["dtypes"]
    own = len(kernel.inputs)
    weights = _typed(_read(scratch / "weights.npz"), dtypes[own:])
    try:
        given = dict(zip(kernel.weights, weights, strict=True))
        run = create(kernel.backend).load(kernel, Path(document["folder"]), given)
        for k in range(document["calls"]):
            arrays = _typed(_read(scratch / f"{k}.npz"), dtypes[:own])
            made = run(dict(zip(kernel.inputs, arrays, strict=True)))
            results = [array_of(made[name]) for name in kernel.outputs]
            _write(scratch / f"{k}.results.npz", results)
    except Exception as error:  # whatever a foreign runtime raises
        raise SystemExit(f"error: {one_line(str(error))}") from error


def _typed(arrays: Sequence[Any], dtypes: Sequence[str]) -> list[Any]:
    """Arrays with the types that a file of NumPy does not know."""
    return [array.view(np.dtype(name)) for array, name in zip(arrays, dtypes, strict=True)]


def _write(path: Path, arrays: Sequence[Any]) -> None:
    np.savez(path, **{f"{k:04}": array for k, array in enumerate(arrays)})


def _read(path: Path) -> list[Any]:
    with np.load(path) as stored:
        return [stored[key] for key in stored.files]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
