"""Trying a library in a process of its own: wrong code ends the process that calls it.

``python -m onnxfold.runtime.backends.onnx_mlir.trial FOLDER`` reads ``trial.json`` (the library and
its tag) and ``feeds.npz``, and writes ``results.npz``. What went wrong goes to standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from onnxfold.runtime.backends.onnx_mlir.library import Library, LibraryError


def main(folder: Path) -> None:
    """Call the library once, and keep what it returns."""
    trial = json.loads((folder / "trial.json").read_text())
    with np.load(folder / "feeds.npz") as stored:
        arrays = [stored[name] for name in stored.files]
    try:
        library = Library(folder / trial["library"], trial["tag"])
        results = library.call(library.default_entry_point(), arrays)
    except LibraryError as error:
        raise SystemExit(f"error: {error}") from error
    np.savez(folder / "results.npz", *results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
