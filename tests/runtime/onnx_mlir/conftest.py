from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CC = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(source: Path, target: Path, *flags: str) -> Path:
    """Compiles a C file to a shared library, as the linker of onnx-mlir would."""
    if CC is None:
        pytest.skip("there is no C compiler")
    command = [CC, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I", HERE, *flags]
    done = subprocess.run([*command, "-o", target, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


class Counts:
    """What a library of the tests counts."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def __getitem__(self, name: str) -> int:
        return ctypes.c_int64.in_dll(self._library, f"test_{name}").value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int64.in_dll(self._library, f"test_{name}").value = value

    def alive(self) -> tuple[int, int, int, int]:
        """Tensors, lists and buffers that are alive, and wrong frees so far."""
        return self["tensors"], self["lists"], self["buffers"], self["wrong_frees"]


@pytest.fixture(scope="session")
def model_library(tmp_path_factory) -> Path:
    """The library of model.c."""
    return build(HERE / "model.c", tmp_path_factory.mktemp("model") / "model.so")


@pytest.fixture
def counts(model_library) -> Iterator[Counts]:
    """Its counters. A test ends with nothing alive that was not before, nothing freed wrongly."""
    found = Counts(model_library)
    before = found.alive()
    yield found
    assert found.alive() == before


@pytest.fixture
def tagged_library(tmp_path) -> Callable[..., Path]:
    """Builds tagged.c with a tag and a number."""

    def build_(tag: str, number: float) -> Path:
        flags = [f"-DTAG={tag}", f"-DNUMBER={float(number)}f", f"-DFILE_STEM={tag}"]
        return build(HERE / "tagged.c", tmp_path / f"{tag}.so", *flags)

    return build_
