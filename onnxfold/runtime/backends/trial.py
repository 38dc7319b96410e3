"""Trying a kernel in a process of its own: wrong code ends the process that calls it.

``python -m onnxfold.runtime.backends.trial FOLDER`` reads ``kernel.json`` (the kernel, and the
folder that its files are named from) and ``feeds.npz``, and writes ``results.npz``. What went wrong
goes to standard error.
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


def tried(kernel: Kernel, folder: Path, arrays: Sequence[Any], seconds: float) -> list[Any]:
    """Results of a kernel.

    Args:
        kernel: The kernel, with a file.
        folder: The folder that its files are named from.
        arrays: Its inputs, and behind them its weights.
        seconds: Time limit.

    Returns:
        Arrays; those of types that NumPy itself has not as words of the same size.

    Raises:
        CompileError: It does not load, fails, crashes, or takes too long.
    """
    with work_folder() as scratch:
        dtypes = [array.dtype.name for array in arrays]
        document = {"kernel": asdict(kernel), "folder": str(folder.resolve()), "dtypes": dtypes}
        (scratch / "kernel.json").write_text(json.dumps(document))
        _write(scratch / "feeds.npz", arrays)
        run_child([*_COMMAND, str(scratch)], seconds, scratch, what="the kernel")
        return _read(scratch / "results.npz")


def main(scratch: Path) -> None:
    """Call the kernel once, and keep what it returns."""
    document = json.loads((scratch / "kernel.json").read_text())
    feeds = zip(_read(scratch / "feeds.npz"), document["dtypes"], strict=True)
    arrays = [array.view(np.dtype(dtype)) for array, dtype in feeds]
    kernel = Kernel(**document["kernel"])
    weights = dict(zip(kernel.weights, arrays[len(kernel.inputs) :], strict=True))
    try:
        run = create(kernel.backend).load(kernel, Path(document["folder"]), weights)
        made = run(dict(zip(kernel.inputs, arrays, strict=False)))
        _write(scratch / "results.npz", [array_of(made[name]) for name in kernel.outputs])
    except Exception as error:  # whatever a foreign runtime raises
        raise SystemExit(f"error: {one_line(str(error))}") from error


def _write(path: Path, arrays: Sequence[Any]) -> None:
    np.savez(path, **{f"{k:04}": array for k, array in enumerate(arrays)})


def _read(path: Path) -> list[Any]:
    with np.load(path) as stored:
        return [stored[key] for key in stored.files]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
