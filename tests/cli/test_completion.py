import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = """
source completion
compopt() { shopt -s progcomp; files=$(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"); }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_onnxfold_completion onnxfold
printf '%s\\n' "${COMPREPLY[@]}" $files
"""


@pytest.fixture
def complete(tmp_path):
    """Return a function that returns the completions of a command's last word in a shell.

    The current folder has two models. The function skips the test if the shell is not installed.
    """
    for name in ("model.onnx", "other.onnx"):
        (tmp_path / name).touch()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(*command: str, **environment: str) -> str:
        env = {**os.environ, "PATH": path, **environment}
        return subprocess.check_output(command, cwd=tmp_path, env=env, text=True)

    def complete_(shell: str, *words: str) -> set[str]:
        if shutil.which(shell) is None:
            pytest.skip(f"needs {shell}")
        script = tmp_path / "completion"
        if not script.exists():
            script.write_text(run("onnxfold", _ONNXFOLD_COMPLETE=f"{shell}_source"))
        if shell == "bash":
            offered = run("bash", "-c", BASH, "bash", *words)
        else:
            offered = run("fish", "-c", f"source completion; complete -C '{' '.join(words)}'")
        return {line.split("\t")[0] for line in offered.splitlines()} - {""}

    return complete_


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_options_and_files(complete, shell):
    assert complete(shell, "onnxfold", "opt") == {"optimize"}
    assert complete(shell, "onnxfold", "optimize", "--lev") == {"--level"}
    assert complete(shell, "onnxfold", "optimize", "mo") == {"model.onnx"}
    assert complete(shell, "onnxfold", "optimize", "model.onnx", "-o", "ot") == {"other.onnx"}
    assert complete(shell, "onnxfold", "compare", "model.onnx", "o") == {"other.onnx"}
    assert complete(shell, "onnxfold", "optimize", "--precision", "w") == {"wide"}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_names_of_rules_and_options(complete, shell):
    offered = complete(shell, "onnxfold", "optimize", "m.onnx", "--disable", "gelu")
    assert "gelu_tanh" in offered and all(name.startswith("gelu") for name in offered)
    assert "activations" in complete(shell, "onnxfold", "optimize", "--disable", "act")
    assert complete(shell, "onnxfold", "optimize", "--target", "o") == {"onnxruntime"}
    assert complete(shell, "onnxfold", "batch", "--passes", "dead") == {"dead-code"}
    if shell == "bash":  # click's script for fish cuts completions at the first comma
        both = complete(shell, "onnxfold", "optimize", "--passes", "simplify,dead")
        assert both == {"simplify,dead-code"}
    assert complete(shell, "onnxfold", "split", "--backend", "i") == {"iree"}
    assert complete(shell, "onnxfold", "compare", "--provider", "C") == {"CPUExecutionProvider"}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion_without_the_command_optimize(complete, shell):
    assert complete(shell, "onnxfold", "mo") == {"model.onnx"}
    assert complete(shell, "onnxfold", "--lev") == {"--level"}
    assert complete(shell, "onnxfold", "model.onnx", "ot") == {"other.onnx"}
    assert complete(shell, "onnxfold", "model.onnx", "--lev") == {"--level"}
    assert {"optimize", "compare"} <= complete(shell, "onnxfold", "")
