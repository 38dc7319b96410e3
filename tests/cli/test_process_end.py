"""What Python does with all the objects of a model when the process ends."""

import gc
import subprocess
import sys

# Run in a process of its own: how often Python looks for garbage once there is a model.
COUNT = """
import atexit, gc, sys

def collections():
    return sum(generation["collections"] for generation in gc.get_stats())

def tell():
    print(collections() - began, gc.get_freeze_count() > 10_000)

atexit.register(tell)  # the first is the last
import onnxfold.storage
from onnxfold.cli import main

opened = onnxfold.storage.opened

def noted(given, **how):
    global began
    model = opened(given, **how)
    began = collections()
    return model

onnxfold.storage.opened = noted
main()
"""


def test_nobody_looks_for_garbage_in_a_model_that_the_end_frees(swin, tmp_path):
    for options in (["-o", tmp_path / "out.onnx", "-q"], ["--plan", "--json"]):
        command = [sys.executable, "-c", COUNT, "optimize", swin, *options]
        done = subprocess.run(map(str, command), capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "0 True", done.stdout


def test_another_program_that_runs_a_command_still_collects(run, tiny, tmp_path):
    frozen = gc.get_freeze_count()
    assert run("optimize", tiny, "-o", tmp_path / "out.onnx").code == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
