"""The tools that are compared, and the environment in which they run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

_PACKAGES = ("onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "onnxruntime", "matplotlib")
# With a data file where the model has one, and where it would be too large without.
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
"""What the other tools do when they are told nothing but the model."""
_SYNC = """
for entry in os.scandir(os.path.dirname(sys.argv[2])):
    with open(entry, "rb+") as file:
        os.fsync(file.fileno())
"""
"""Waits until the result is on the disk, as onnxfold does."""
COPY = "copy"
"""No tool: what any program in Python takes that reads and writes the same bytes."""
_COPY = """
import shutil, onnx
shutil.copyfile(sys.argv[1], sys.argv[2])
if os.path.exists(data := sys.argv[1] + ".data"):
    shutil.copy(data, os.path.dirname(sys.argv[2]))
"""


def environment(folder: Path, project: Path) -> Path:
    """The Python of an environment with the other tools, and the project as it is now."""
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # setuptools would put modules that are gone into the wheel again
    shutil.rmtree(project / "build" / "lib", ignore_errors=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([*install, *_PACKAGES, str(project)], check=True)
    os.environ.pop("PYTHONPATH", None)  # the tools are those of the environment
    return python


def commands(python: Path, source: Path, target: Path) -> dict[str, list[str]]:
    """What each tool is started with."""
    fold = [str(python.with_name("onnxfold")), "optimize", str(source), "-o", str(target), "-q"]
    return {
        "onnxfold": fold,
        "onnxfold -O2": [*fold, "-O2"],  # measures its error on onnxruntime, too
        **{
            name: [str(python), "-c", f"{_SAVE}\n{script}\n{_SYNC}", str(source), str(target)]
            for name, script in {**_SCRIPTS, COPY: _COPY}.items()
        },
    }
