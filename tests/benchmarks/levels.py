"""``python -m tests.benchmarks runtime``: what onnxruntime makes of a model at each level.

The model as it came, at -O1, -O2 and for onnxruntime, and what onnxslim and onnxsim make of it
where they are installed, each made in a process of its own; then as ``onnxfold bench`` does.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from onnxfold.bench.models import bench_models
from onnxfold.report.bench_table import bench_models_text

_LEVELS = {
    "-O1": ["-O1"],
    "-O2": ["-O2"],
    "target": ["-O2", "--target", "onnxruntime"],
}
_TOOLS = {
    "onnxslim": "import sys, onnxslim; onnxslim.slim(sys.argv[1], sys.argv[2])",
    "onnxsim": "import sys, onnx, onnxsim;onnx.save(onnxsim.simplify(sys.argv[1])[0], sys.argv[2])",
}


def runtime(
    folder: Path,
    rounds: int,
    models: Sequence[str],
    dims: Mapping[str, int],
    feeds: str | None = None,
) -> None:
    """Print a table for each model."""
    for model in models:
        place = folder / "made"
        place.mkdir()
        print(f"{model}\n")
        made = [model, *_made(model, place)]
        result = bench_models(made, feeds=feeds, dims=dims, rounds=rounds)
        print(bench_models_text(result))
        shutil.rmtree(place)


def _made(model: str, folder: Path) -> Iterator[str]:
    """Paths of the models that are compared with it."""
    commands = {
        name: [sys.executable, "-m", "onnxfold", "optimize", model, *options, "-q", "-o"]
        for name, options in _LEVELS.items()
    } | {
        name: [sys.executable, "-c", script, model]
        for name, script in _TOOLS.items()
        if importlib.util.find_spec(name)
    }
    for name, command in commands.items():
        path = folder / f"{name}.onnx"
        done = subprocess.run([*command, str(path)], capture_output=True, text=True)
        if done.returncode:
            print(f"{name} failed: {done.stderr.strip()[-300:]}")
        else:
            yield str(path)
