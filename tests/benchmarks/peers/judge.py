"""Whether what a tool has made is right, and how large it is."""

import subprocess
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import onnx


@dataclass(frozen=True)
class Limits:
    """What a tool may take: wall seconds, and bytes of memory (None for any)."""

    seconds: float
    memory: int | None


@dataclass
class Made:
    """What one tool made of one model."""

    tool: str
    verdict: str
    """"equal" to the bit, "near" (1e-4 relative, 1e-5 absolute), "differs", "unchecked" (the
    comparison takes longer than a tool may) or "failed"."""
    reason: str = ""
    was_tried: bool = True
    """False if the tool has failed at a smaller model of the same series."""
    nodes: int | None = None
    """Of all graphs and functions, without Constant."""
    nbytes: int | None = None
    """With external data."""
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)


@dataclass
class Compared:
    """All tools on one model."""

    series: str
    """"given", "nodes" or "bytes": generated ones that differ in size alone."""
    model: str
    size: float
    """What was asked of a generated model: nodes, Constants included, or gigabytes; else 0."""
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
    """Compare a result with its model on onnxruntime.

    Args:
        tool: Who made it.
        error: What it printed, if it failed.
        source: The model.
        target: The result, which need not be there.
        python: Of the environment that has onnxfold.
        seconds: How long each comparison may take.
        feeds: The inputs, as ``onnxfold compare`` takes them; random ones if there are none.
    """
    if error or not target.exists():
        lines = error.strip().splitlines() or ["it wrote nothing"]
        return Made(tool, "failed", lines[-1][:200])
    try:
        made = Made(tool, "equal", nodes=count(target), nbytes=stored_bytes(target))
    except FileNotFoundError as missing:
        name = Path(missing.filename).name
        return Made(tool, "failed", f"its result refers to {name}: not there")
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
            made.verdict, made.reason = "failed", f"its result does not run: {said}"
    except subprocess.TimeoutExpired:
        made.verdict, made.reason = "unchecked", f"comparing it takes longer than {seconds:g} s"
    return made


def count(path: Path) -> int:
    """Nodes of all graphs and functions of a model, without Constant."""
    model = onnx.load(path, load_external_data=False)
    graphs = [model.graph.node, *(f.node for f in model.functions)]
    count = 0
    while graphs:
        for node in graphs.pop():
            count += node.op_type != "Constant"
            graphs += [a.g.node for a in node.attribute if a.HasField("g")]
            graphs += [g.node for a in node.attribute for g in a.graphs]
    return count


def stored_bytes(path: Path) -> int:
    """Bytes of a model with its external data."""
    model = onnx.load(path, load_external_data=False)
    names = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in names)
