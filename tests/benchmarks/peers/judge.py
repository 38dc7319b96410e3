"""Compare optimized models with the original models, and measure the sizes of models."""

import subprocess
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx.external_data_helper import ExternalDataInfo

from onnxfold.ir.graphs import count_nodes


@dataclass(frozen=True)
class Limits:
    """Limits of a tool: wall time in seconds, and memory in bytes. None is no memory limit."""

    seconds: float
    memory: int | None


@dataclass
class Made:
    """The result of a tool on a model."""

    tool: str
    verdict: str
    """"equal" (bit for bit), "near" (1e-4 relative, 1e-5 absolute), "differs", "unchecked" (the
    comparison exceeds the time limit of a tool) or "failed" (no result, or it does not run)."""
    reason: str = ""
    """Why the verdict is "failed" or "unchecked"; otherwise empty."""
    was_tried: bool = True
    """False if the tool was not run, because it failed on a smaller model of the same series."""
    nodes: int | None = None
    """Nodes of all graphs and functions of the result, without Constant. None without a result."""
    nbytes: int | None = None
    """Size of the result and its data files in bytes. None without a result."""
    wall: list[float] = field(default_factory=list)
    """Wall time of each run in seconds."""
    cpu: list[float] = field(default_factory=list)
    """CPU time of each run in seconds."""
    peak_mb: list[float] = field(default_factory=list)
    """Peak memory of each run in MiB."""


@dataclass
class Compared:
    """The results of all tools on one model."""

    series: str
    """"given" for models of the user, "nodes" for generated chains, "bytes" for transformers."""
    model: str
    size: float
    """Requested size of a generated model: nodes, including Constant, or gigabytes. Otherwise 0."""
    nodes: int
    nbytes: int
    made: list[Made]


def judged(
    tool: str,
    error: str,
    source: Path,
    target: Path,
    python: Path,
    seconds: float,
    feeds: Path | None = None,
) -> Made:
    """Compare the result of a tool with the original model on onnxruntime.

    The environment's ``onnxfold compare`` runs the comparison. If the outputs are not equal bit for
    bit, it runs again with tolerances. A tool with an error or without a result fails.

    Args:
        tool: Name of the tool.
        error: Error of the tool, or an empty string.
        source: The original model.
        target: The path of the result.
        python: Python of the environment.
        seconds: Time limit of each comparison.
        feeds: File of inputs for ``onnxfold compare --feeds``; None for random inputs.
    """
    if error or not target.exists():
        lines = error.strip().splitlines() or ["the tool wrote no result"]
        return Made(tool, "failed", lines[-1][:200])
    try:
        made = Made(tool, "equal", nodes=count(target), nbytes=stored_bytes(target))
    except FileNotFoundError as missing:
        name = Path(missing.filename).name
        return Made(tool, "failed", f"its result refers to the missing file {name}")
    command = [python.with_name("onnxfold"), "compare", source, target, "--json"]
    command += ["--seeds", "2"] if feeds is None else ["--feeds", feeds]
    run = partial(subprocess.run, capture_output=True, text=True, timeout=seconds)
    try:
        done = run(command)
        if done.returncode == 1:
            done = run([*command, "--rtol", "1e-4", "--atol", "1e-5"])
            made.verdict = "differs" if done.returncode else "near"
        elif done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            said = lines[0].replace(str(target), target.name)[:200]
            made.verdict = "failed"
            made.reason = f"its result does not run: {said}"
    except subprocess.TimeoutExpired:
        made.verdict = "unchecked"
        made.reason = f"the comparison takes longer than {seconds:g} s"
    return made


def count(path: Path) -> int:
    """Return the number of nodes of all graphs and functions of a model, without Constant."""
    counts = count_nodes(ir.load(path))
    return sum(counts.values()) - counts.get("Constant", 0)


def stored_bytes(path: Path) -> int:
    """Return the size of a model file and of the data files of its initializers, in bytes."""
    weights = onnx.load(path, load_external_data=False).graph.initializer
    names = {ExternalDataInfo(tensor).location for tensor in weights} - {""}
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in names)
