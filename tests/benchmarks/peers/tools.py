import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PACKAGES = ("onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "onnxruntime", "matplotlib")
# The result has a data file if the model has one, because a protobuf message is limited to 2 GiB.
_SAVE = """
import os, sys
def save(model):
    import onnx
    large = os.path.exists(sys.argv[1] + ".data")
    onnx.save(model, sys.argv[2], save_as_external_data=large, location="out.onnx.data")
"""
_SCRIPTS = {
    "onnxsim": "import onnxsim; save(onnxsim.simplify(sys.argv[1])[0])",
    "onnxslim": """
import onnxslim
large = os.path.exists(sys.argv[1] + ".data")
onnxslim.slim(sys.argv[1], sys.argv[2], save_as_external_data=large)
""",
    "onnxscript": "import onnx, onnxscript.optimizer; "
    "save(onnxscript.optimizer.optimize(onnx.load(sys.argv[1])))",
    "onnxoptimizer": "import onnx, onnxoptimizer as o; save(o.optimize(onnx.load(sys.argv[1])))",
    "onnxruntime": """
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = sys.argv[2]
if os.path.exists(sys.argv[1] + ".data"):
    key = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(key + "file_name", "out.onnx.data")
    options.add_session_config_entry(key + "min_size_in_bytes", "1024")
ort.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])
""",
}
"""Scripts that run the other tools with their defaults, and onnxruntime's basic optimizations."""
_SYNC = """
for entry in os.scandir(os.path.dirname(sys.argv[2])):
    with open(entry, "rb+") as file:
        os.fsync(file.fileno())
"""
"""A script that flushes the files of the result to the disk, as onnxfold does."""
COPY = "copy"
"""Baseline: a Python program that imports onnx and copies the model's files."""
_COPY = """
import shutil, onnx
shutil.copyfile(sys.argv[1], sys.argv[2])
if os.path.exists(data := sys.argv[1] + ".data"):
    shutil.copy(data, os.path.dirname(sys.argv[2]))
"""


def environment(folder: Path, project: Path) -> Path:
    """Install the other tools and the project in a virtual environment, and return its Python.

    The environment is created if necessary. PYTHONPATH is removed from the variables of this
    process.
    """
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # setuptools would add modules to the wheel that remain in build/lib after their deletion
    shutil.rmtree(project / "build" / "lib", ignore_errors=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([*install, *_PACKAGES, str(project)], check=True)
    os.environ.pop("PYTHONPATH", None)  # its packages would hide those of the environment
    return python


def commands(python: Path, source: Path, target: Path) -> dict[str, list[str]]:
    fold = [str(python.with_name("onnxfold")), "optimize", str(source), "-o", str(target), "-q"]
    return {
        "onnxfold": fold,
        "onnxfold -O2": [*fold, "-O2"],  # also measures the error of the result on onnxruntime
        **{
            name: [str(python), "-c", f"{_SAVE}\n{script}\n{_SYNC}", str(source), str(target)]
            for name, script in {**_SCRIPTS, COPY: _COPY}.items()
        },
    }


# The script runs in a separate small process, because the peak memory of a child process includes
# the memory of its parent process at the fork.
_MEASURE = """
import json, os, resource, signal, subprocess, sys, threading, time
seconds, memory = json.loads(sys.argv[1])
if memory:  # without a limit, the kernel could end another process for lack of memory
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL, start_new_session=True)
timer = threading.Timer(seconds or 1e6, os.killpg, (process.pid, signal.SIGKILL))
timer.start()
code = process.wait()
wall = time.perf_counter() - begin
timer.cancel()
if seconds is not None and wall > seconds:
    code = "late"
use = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, wall, use.ru_utime + use.ru_stime, use.ru_maxrss]))
"""


@dataclass
class Run:
    """Time and memory of one run.

    Attributes:
        wall: Wall time in seconds.
        cpu: User and system time of all processes in seconds.
        peak_mb: Peak resident memory of the largest process in MiB.
        error: Error output of a failed run, or the reason why it failed; otherwise empty.
    """

    wall: float
    cpu: float
    peak_mb: float
    error: str


def measure(command: Sequence[str], seconds: float | None = None, memory: int | None = None) -> Run:
    """Run a command with limits, and measure its time and memory.

    Args:
        command: The command and its arguments.
        seconds: Wall time after which the command's process group is killed; None for no limit.
        memory: Limit of the data segment of each process in bytes; None for no limit.
    """
    limits = json.dumps([seconds, memory])
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, limits, *command], capture_output=True, text=True
    )
    code, wall, cpu, peak_kib = json.loads(done.stdout.splitlines()[-1])
    error = ""
    if code == "late":
        error = f"it takes longer than {seconds:g} s"
    elif code:
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        error = done.stderr.strip() or f"it ended with {ending}"
    return Run(wall, cpu, peak_kib / 1024, error)
