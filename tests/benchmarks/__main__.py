"""``python -m tests.benchmarks [NAME ...]``: whole processes, side by side.

Commands take turns (A B A B), so that a slower machine slows all; the table gives medians of
CPU seconds (user + system) and wall seconds, the peak resident memory, and ratios to onnxfold.

``runtime --model PATH`` looks at what comes out instead (``levels.py``), and
``attention --model PATH`` at the attention in it (``attention.py``). ``peers --model DIR`` compares
what onnxfold and other tools make of many models (``peers``), ``census --model DIR`` looks at which
rules and kernels they use (``census.py``), and ``sessions`` runs with and without runtime constants
(``sessions.py``).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.attention import attention
from tests.benchmarks.census import census
from tests.benchmarks.levels import runtime
from tests.benchmarks.peers import peers
from tests.benchmarks.peers.judge import Limits
from tests.benchmarks.peers.production import production
from tests.benchmarks.processes import measure
from tests.benchmarks.sessions import sessions

_COPY = """
import os, shutil, sys
for name in os.listdir(sys.argv[1]):
    if name.startswith("in.onnx"):
        with open(os.path.join(sys.argv[1], name), "rb") as a, open(
            os.path.join(sys.argv[1], name.replace("in", "copy", 1)), "wb") as b:
            while os.sendfile(b.fileno(), a.fileno(), None, 1 << 26):
                pass
            os.fsync(b.fileno())
"""
_ONNXRUNTIME = """
import os, sys
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = sys.argv[2]
options.log_severity_level = 4
names = [sys.argv[2]]
if len(sys.argv) > 3:
    names.append(sys.argv[2] + ".data")
    key = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(key + "file_name", os.path.basename(names[-1]))
    options.add_session_config_entry(key + "min_size_in_bytes", "1024")
ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
for name in names:
    with open(name, "rb+") as f:
        os.fsync(f.fileno())
"""
_ONNXSIM = """
import sys, onnx, onnxsim
onnx.save(onnxsim.simplify(sys.argv[1])[0], sys.argv[2])
"""


@dataclass
class Measured:
    """What the runs of one command took."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_mb: float = 0


def run_side_by_side(
    commands: dict[str, list[str]], rounds: int, folder: Path
) -> dict[str, Measured]:
    """Run all commands in turn, ``rounds`` times after one round that does not count.

    What they write in the folder is removed before each, so that all write new files: who puts a
    new file in the place of an old one needs the memory of both in the page cache, who overwrites
    it does not.
    """
    given = set(folder.rglob("*"))
    measured = {name: Measured() for name in commands}
    for round_ in range(rounds + 1):
        for name, command in commands.items():
            for path in set(folder.rglob("*")) - given:
                if path.is_file():
                    path.unlink()
            run = measure(command)
            if run.error:
                raise SystemExit(f"{name} failed:\n{run.error[-2000:]}")
            if round_:
                measured[name].wall.append(run.wall)
                measured[name].cpu.append(run.cpu)
            measured[name].peak_mb = max(measured[name].peak_mb, run.peak_mb)
    return measured


def show(title: str, measured: dict[str, Measured]) -> None:
    """Print one table; the first command is what the others are compared with."""
    table = Table(title=title)
    for column in ("command", "CPU s", "wall s", "peak MB", "CPU ratio", "wall ratio"):
        table.add_column(column, justify="left" if column == "command" else "right")
    first = next(iter(measured.values()))
    for name, m in measured.items():
        cpu, wall = statistics.median(m.cpu), statistics.median(m.wall)
        table.add_row(
            name,
            f"{cpu:.2f}",
            f"{wall:.2f}",
            f"{m.peak_mb:.0f}",
            f"{cpu / statistics.median(first.cpu):.2f}",
            f"{wall / statistics.median(first.wall):.2f}",
        )
    Console(width=100).print(table)


def weights(folder: Path, rounds: int) -> None:
    """1 GiB of weights, each transposed: once inside the file, once as external data."""
    for external in (False, True):
        where = folder / ("external" if external else "inside")
        where.mkdir()
        make = (
            "from pathlib import Path; from tests.benchmarks.models import transposed_weights;"
            f"transposed_weights(Path({str(where / 'in.onnx')!r}), 4096, 16, {external})"
        )
        subprocess.run([sys.executable, "-c", make], check=True)
        source, flag = str(where / "in.onnx"), ["external"] if external else []
        commands = {
            "onnxfold": _onnxfold(source, str(where / "out.onnx")),
            "copy + fsync": [sys.executable, "-c", _COPY, str(where)],
            "onnxruntime basic": [
                *(sys.executable, "-c", _ONNXRUNTIME, source, str(where / "ort.onnx")),
                *flag,
            ],
        }
        title = f"1 GiB of transposed weights, {'external data' if external else 'in the file'}"
        show(title, run_side_by_side(commands, rounds, folder))


def chain(folder: Path, rounds: int) -> None:
    """30,000 and 300,000 nodes of scalar constants: cost per node, and that it is linear."""
    from tests.benchmarks.models import scalar_chain

    small, large = folder / "small.onnx", folder / "large.onnx"
    scalar_chain(small, 10_000)
    scalar_chain(large, 100_000)
    commands = {
        "onnxfold, 30,000 nodes": _onnxfold(str(small), str(folder / "out.onnx")),
        "onnxfold, 300,000 nodes": _onnxfold(str(large), str(folder / "out.onnx")),
        "onnxruntime basic, 30,000": [
            *(sys.executable, "-c", _ONNXRUNTIME, str(small), str(folder / "ort.onnx"))
        ],
    }
    if importlib.util.find_spec("onnxsim"):
        commands["onnxsim, 30,000"] = [
            *(sys.executable, "-c", _ONNXSIM, str(small), str(folder / "sim.onnx"))
        ]
    show("Constant, Sqrt, Mul, ...", run_side_by_side(commands, rounds, folder))


def unary(folder: Path, rounds: int) -> None:
    """64 MiB through 40 unary ops to a mean: exact ones, and onnxruntime's functions."""
    from tests.benchmarks.models import unary_chain

    for ops in (["Neg", "Abs"], ["Tanh", "Exp", "Neg", "Sigmoid"]):
        source = folder / f"{'_'.join(ops)}.onnx"
        unary_chain(source, 4096, ops * (40 // len(ops)))
        commands = {
            "onnxfold": _onnxfold(str(source), str(folder / "out.onnx")),
            "onnxruntime basic": [
                *(sys.executable, "-c", _ONNXRUNTIME, str(source), str(folder / "ort.onnx"))
            ],
        }
        title = f"64 MiB, 40 of {', '.join(ops)}, then ReduceMean"
        show(title, run_side_by_side(commands, rounds, folder))


def embedding(folder: Path, rounds: int) -> None:
    """2 GiB of float32 to float16 and transposed, with a limit of 256 MB and without one."""
    from tests.benchmarks.models import embedding as model

    source, target = str(folder / "in.onnx"), str(folder / "out.onnx")
    model(folder / "in.onnx", 131_072, 4096)
    commands = {
        "onnxfold": _onnxfold(source, target),
        "onnxfold, 256 MB": [*_onnxfold(source, target), "--memory-limit", "256MB"],
        "copy + fsync": [sys.executable, "-c", _COPY, str(folder)],
    }
    show("2 GiB embedding: Cast, Transpose", run_side_by_side(commands, rounds, folder))


def llama(folder: Path, rounds: int) -> None:
    """2.2 GB of float16 weights of a decoder in a data file: written, and shared."""
    from tests.benchmarks.models import transformer

    source, target = str(folder / "in.onnx"), str(folder / "out.onnx")
    transformer(folder / "in.onnx", 2048, 5632, 19, 32_000)
    commands = {
        "onnxfold": _onnxfold(source, target),
        "onnxfold, shared": [*_onnxfold(source, target), "--share-weights"],
        "onnxfold --plan": [*_onnxfold(source, target), "--plan"],
        "copy + fsync": [sys.executable, "-c", _COPY, str(folder)],
    }
    show("2.2 GB of a Llama's weights in float16", run_side_by_side(commands, rounds, folder))


def _onnxfold(source: str, target: str) -> list[str]:
    return [sys.executable, "-m", "onnxfold", "optimize", source, "-o", target, "--quiet"]


BENCHMARKS = {
    "weights": weights,
    "chain": chain,
    "unary": unary,
    "embedding": embedding,
    "llama": llama,
}

OTHERS = ("runtime", "attention", "peers", "census", "sessions")


def main() -> None:
    """Run the benchmarks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS, *OTHERS], default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", action="append", default=[], help=f"for {', '.join(OTHERS)}")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=SIZE")
    parser.add_argument("--feeds", help="an .npz file, or a folder with input_0.pb, ...")
    parser.add_argument("--output", type=Path, help="where tables and figures go")
    parser.add_argument("--jobs", type=int, default=1, help="for census: models at the same time")
    others = parser.add_argument_group("peers")
    others.add_argument("--environment", type=Path, help="of the tools; made if it is not there")
    others.add_argument("--nodes", type=int, nargs="*", default=[], help="also generated chains")
    others.add_argument(
        "--gigabytes", type=float, nargs="*", default=[], help="also generated transformers"
    )
    others.add_argument(
        "--production", action="store_true", help="models of packages; --model: globs of names"
    )
    others.add_argument("--tool", action="append", default=[], help="of production models")
    others.add_argument("--seconds", type=float, default=300, help="that a tool may take")
    others.add_argument("--memory", type=float, help="GB that a tool may take")
    arguments = parser.parse_args()
    memory = arguments.memory and int(arguments.memory * 1e9)
    limits = Limits(arguments.seconds, memory)
    begin = time.perf_counter()
    for name in arguments.names or BENCHMARKS:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
            dims = {name: int(size) for name, size in (d.split("=") for d in arguments.dim)}
            if name == "runtime":
                runtime(Path(folder), arguments.rounds, arguments.model, dims, arguments.feeds)
            elif name == "attention":
                attention(Path(folder), arguments.model)
            elif name == "sessions":
                sessions(arguments.rounds, arguments.model, dims)
            elif name == "peers" and arguments.production:
                production(
                    Path(folder),
                    arguments.rounds,
                    arguments.model,
                    arguments.tool,
                    arguments.environment,
                    arguments.output,
                    limits,
                )
            elif name == "census":
                census(arguments.model, arguments.output, arguments.jobs)
            elif name == "peers":
                peers(
                    Path(folder),
                    arguments.rounds,
                    arguments.model,
                    arguments.environment,
                    arguments.output,
                    arguments.nodes,
                    arguments.gigabytes,
                    limits,
                )
            else:
                BENCHMARKS[name](Path(folder), arguments.rounds)
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
