"""Timing kernels and onnxruntime in turns, in a process of its own: kernels can end it.

``python -m onnxfold.runtime.backends.timing_child FOLDER`` reads ``kernels.json``: for each kernel
the kernel, the folder that its files are named from, the common stem of the files with the model
that it was made of (``.onnx``) and with arrays (``.npz``), and their dtypes by name. It adds a
line to ``times.jsonl`` for each: seconds of the kernel and of onnxruntime, or null.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows more names of types by it
import numpy as np
import onnxruntime as ort

from onnxfold.runtime.backends.fitting import fitting
from onnxfold.runtime.backends.registry import create
from onnxfold.runtime.backends.values import ort_value
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.runtime.bundles.session_options import fold_options

_ENOUGH = 0.1  # seconds for one kernel and onnxruntime, after one run of each


def main(scratch: Path) -> None:
    """Time each kernel."""
    for document in json.loads((scratch / "kernels.json").read_text()):
        try:
            times = _times(**document)
        except Exception:  # no inputs could be made up, or whatever a foreign runtime raises
            times = None
        with open(scratch / "times.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(times) + "\n")


def _times(
    kernel: dict[str, Any], folder: str, stem: str, dtypes: Mapping[str, str]
) -> list[float]:
    known = Kernel.from_dict(kernel)
    with np.load(f"{stem}.npz") as stored:
        given = {n: stored[f"{k}"].view(np.dtype(d)) for k, (n, d) in enumerate(dtypes.items())}
    weights = {name: given.pop(name) for name in known.weights}
    run = create(known.backend).load(known, Path(folder), weights)
    feeds = fitting(known.takes, {name: ort_value(feed) for name, feed in given.items()})
    options, providers = fold_options(None), ["CPUExecutionProvider"]
    session = ort.InferenceSession(f"{stem}.onnx", options, providers=providers)
    return _best(
        lambda: [ort_value(value) for value in run(feeds).values()],
        lambda: session.run_with_ort_values(None, feeds),
    )


def _best(*runs: Callable[[], object]) -> list[float]:
    """The shortest time of each, in turns: others that keep the machine busy disturb all.

    Each runs twice in its turn, as threads of the one before it may wait for work in a loop.
    """
    for run in runs:
        run()
    best = [float("inf")] * len(runs)
    end = time.perf_counter() + _ENOUGH
    while True:
        for k, run in [(k, run) for k, run in enumerate(runs) for _ in range(2)]:
            begin = time.perf_counter()
            run()
            best[k] = min(best[k], time.perf_counter() - begin)
        if time.perf_counter() > end:
            return best


if __name__ == "__main__":
    main(Path(sys.argv[1]))
