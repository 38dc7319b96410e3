"""Test the process of a command: signals, streams, garbage collection and imported modules."""

import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from model_table import saved
from processes import python

from onnxfold.ir import storage

SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"]


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Return the path of a model with 256 MiB of transposed weights.

    Writing the result takes long enough to send a signal in the meantime.
    """
    weight = np.arange(2048 * 2048, dtype=np.float32).reshape(2048, 2048)
    outputs = ", ".join(f"float[2048, 2048] y{i}" for i in range(16))
    nodes = " ".join(f"y{i} = Transpose(w{i})" for i in range(16))
    text = f"g () => ({outputs}) {{ {nodes} }}"
    path = tmp_path_factory.mktemp("slow") / "m.onnx"
    yield saved(text, path, 18, **{f"w{i}": weight + i for i in range(16)})
    path.unlink()


def start(*args: object, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "onnxfold", "optimize", *map(str, args)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def writing(folder) -> bool:
    return any(name.endswith((".tmp", ".data")) for name in os.listdir(folder))


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("more", [[], ["--external-data"]])
def test_signal_ends_the_command(slow, tmp_path, name, more) -> None:
    number = getattr(signal, name)
    process = start(slow, "-o", tmp_path / "o.onnx", *more)
    while not writing(tmp_path):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)  # later signals have no effect
    error = process.communicate()[1]
    # SIGTERM may arrive first
    first = number if process.returncode == 128 + number else signal.SIGTERM
    reason = "interrupted" if first == signal.SIGINT else f"ended by {first.name}"
    assert (process.returncode, error) == (128 + first, f"onnxfold: error: {reason}\n")
    assert os.listdir(tmp_path) == []


def test_ignored_signals_remain_ignored(slow, tmp_path) -> None:
    """A command under nohup ignores SIGHUP."""
    process = start(
        slow,
        "-o",
        tmp_path / "o.onnx",
        "-q",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    while not writing(tmp_path):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGHUP)
    assert process.communicate()[1] == ""
    assert process.returncode == 0
    assert os.listdir(tmp_path) == ["o.onnx"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(tiny, tmp_path, closed) -> None:
    """Some supervisors close the streams. Opened files must not reuse the streams' descriptors."""
    command = f'"{sys.executable}" -m onnxfold optimize "{tiny}" -o out.onnx --check 1 {closed}'
    assert subprocess.run(command, shell=True, cwd=tmp_path, check=False).returncode == 0
    assert storage.load(tmp_path / "out.onnx")


def test_full_output_device_is_an_error(tiny) -> None:
    command = f'env -u PYTHONUNBUFFERED "{sys.executable}" -m onnxfold inspect "{tiny}" > /dev/full'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "onnxfold: error: No space left on device\n")


def test_handlers_of_the_caller_are_kept(run, tiny, tmp_path) -> None:
    seen = []
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        assert run("inspect", tiny).code == 0
        signal.raise_signal(signal.SIGTERM)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGTERM, before[1])
    assert [signal.getsignal(number) for number in numbers] == before


# The script counts the garbage collections in its process after the model is loaded. It prints the
# number, and whether more than 10,000 objects are frozen.
COUNT = """
import atexit, gc, sys

def collections():
    return sum(generation["collections"] for generation in gc.get_stats())

def report():
    print(collections() - collections_after_load, gc.get_freeze_count() > 10_000)

atexit.register(report)  # the first registered function runs last
import onnxfold.ir.storage
from onnxfold.cli import main

opened = onnxfold.ir.storage.opened

def opened_and_counted(source, **options):
    global collections_after_load
    model = opened(source, **options)
    collections_after_load = collections()
    return model

onnxfold.ir.storage.opened = opened_and_counted
main()
"""


def test_commands_do_not_collect_garbage(swin, tmp_path):
    for options in (["-o", tmp_path / "out.onnx", "-q"], ["--plan", "--json"]):
        printed = python("-c", COUNT, "optimize", swin, *options)
        assert printed.splitlines()[-1] == "0 True", printed


def test_garbage_collection_of_the_caller_is_kept(run, tiny, tmp_path):
    frozen = gc.get_freeze_count()
    assert run("optimize", tiny, "-o", tmp_path / "out.onnx").code == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


HEAVY = ["numpy", "onnx", "onnx_ir", "onnxruntime", "ml_dtypes", "sympy", "rich", "google.protobuf"]


def loaded_after(code: str, *args: object) -> set[str]:
    """Run code in a new process, and return the names of the modules that are then loaded."""
    report = "import sys; print('modules:', *sys.modules)"
    printed = python("-c", f"{code}\n{report}", *args)
    return set(printed.split("modules: ")[1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import onnxfold",
        "import onnxfold.cli",
        "from onnxfold.cli import main; main(['--help'])",
        "from onnxfold.cli import main; main(['optimize', '--help'])",
        "from onnxfold.cli import main; main(['--version'])",
    ],
)
def test_help_imports_nothing_heavy(code):
    assert not loaded_after(code).intersection(HEAVY)


def test_simple_folding_needs_no_onnxruntime(tiny, tmp_path):
    code = "import sys; from onnxfold.cli import main; main(['optimize', *sys.argv[1:], '--json'])"
    loaded = loaded_after(code, tiny, "-o", tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").exists()
    unneeded = ["onnxruntime", "rich", "onnx.reference", "onnxfold.tools.comparison", "sympy.core"]
    assert not loaded.intersection(unneeded)


def test_symbolic_arithmetic_works_when_it_is_needed():
    code = """
from onnxfold.support.lazy_imports import defer_symbolic_arithmetic
defer_symbolic_arithmetic()
import sys, onnx_ir
assert "sympy.core" not in sys.modules
assert onnx_ir.SymbolicDim("past + seq").evaluate({"past": 2, "seq": 3}) == 5
assert str(onnx_ir.SymbolicDim("n") + 1) == "n + 1"
"""
    assert "sympy.core" in loaded_after(code)
