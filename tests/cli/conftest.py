from dataclasses import dataclass
from pathlib import Path

import pytest
from model_table import saved

from onnxfold.cli import main

TINY = """
g (float[batch, 2] x) => (float[batch, 2] y) <float[2] w = {1, 2}> {
    two = Constant<value_float = 2.0> ()
    v = Mul(w, two)
    y = Add(x, v)
}
"""


@dataclass
class Result:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys):
    def run_(*args: object) -> Result:
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run_


@pytest.fixture
def done(run):
    def done_(*args: object) -> Result:
        result = run(*args)
        assert result.code == 0, result.err
        return result

    return done_


@pytest.fixture
def tiny(tmp_path) -> Path:
    """Return the path of a model of three nodes. Two of the nodes are constant."""
    return saved(TINY, tmp_path / "tiny.onnx")


@pytest.fixture(scope="session")
def swin() -> Path:
    return Path(__file__).parents[2] / "models" / "swin.onnx"
