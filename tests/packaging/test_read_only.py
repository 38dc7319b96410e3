"""Test read-only installations and users without a home folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "swin.onnx"

# The prefix of a command that an unknown user runs. The user may read all files, because Python may
# be in a folder of root.
UNPRIVILEGED = (
    "setpriv",
    "--reuid=12345",
    "--regid=12345",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)

SESSION = """
import sys
import numpy as np
import onnxfold
import onnxruntime
assert onnxfold.__file__.startswith(sys.argv[1]), onnxfold.__file__
session = onnxfold.InferenceSession(sys.argv[2])
usual = onnxruntime.InferenceSession(sys.argv[2])
value = usual.get_inputs()[0]
x = np.ones([n if isinstance(n, int) else 1 for n in value.shape], np.float32)
for actual, expected in zip(session.run(None, {value.name: x}), usual.run(None, {value.name: x})):
    assert actual.shape == expected.shape
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Return a function that runs Python with a read-only copy of the package.

    The user has no permission to write the copy. ``home`` is the value of HOME; None to unset HOME.
    """
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:  # root can write everywhere
        prefix = UNPRIVILEGED
        if shutil.which("setpriv") is None or subprocess.run([*prefix, "true"]).returncode:
            pytest.skip("root cannot start a process without the permission to write")
    packages = tmp_path / "packages"
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "onnxfold", packages / "onnxfold", ignore=leave_out)
    shutil.copytree(ROOT / "rules", packages / "onnxfold" / "rules", ignore=leave_out)
    folders = [packages, *(path for path in packages.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    for name in ("temporary", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)

    def run(*words: object, home: str | None) -> subprocess.CompletedProcess:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("HOME", "XDG_CACHE_HOME", "PYTHONDONTWRITEBYTECODE")
        }
        environment |= {"PYTHONPATH": str(packages), "TMPDIR": str(tmp_path / "temporary")}
        if home is not None:
            environment["HOME"] = home
        command = [*prefix, sys.executable, *map(str, words)]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path / "out", capture_output=True, text=True
        )
        assert not done.returncode, done.stderr
        assert not [*packages.rglob("__pycache__")]
        assert not [*(tmp_path / "temporary").iterdir()]
        return done

    yield run
    for folder in folders:
        folder.chmod(0o755)


HOMES = pytest.mark.parametrize("home", [None, "/nonexistent/home"])


@HOMES
def test_command_optimizes_a_model(start, tmp_path: Path, home: str | None) -> None:
    target = tmp_path / "out" / "small.onnx"
    done = start("-m", "onnxfold", "optimize", MODEL, "-o", target, "-q", home=home)
    assert done.stderr == ""
    assert len(onnx.load(target).graph.node) < 200
    assert os.listdir(target.parent) == ["small.onnx"]


@HOMES
def test_session_runs_without_a_cache(start, tmp_path: Path, home: str | None) -> None:
    if home is None and os.geteuid() != 0:
        pytest.skip("this user has a home folder without the variable")
    done = start("-c", SESSION, tmp_path, MODEL, home=home)
    (warning,) = [line for line in done.stderr.splitlines() if "[W:onnxruntime:" not in line]
    assert warning.startswith("models are opened without optimization: ")
    assert "the cache folder cannot be created" in warning and "set XDG_CACHE_HOME" in warning
    assert not os.listdir(tmp_path / "out")
