import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from double import python_program, written_double

from onnxfold.runtime.backends.base import work_folder

HERE = Path(__file__).parent
CC = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(source: Path, target: Path, *flags: str) -> Path:
    """Compile a C file to a shared library, or skip the test if there is no C compiler."""
    if CC is None:
        pytest.skip("there is no C compiler")
    command = [CC, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I", HERE, *flags]
    done = subprocess.run([*command, "-o", target, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


class Counts:
    """The counters of a test library, which exports them as ``test_NAME``."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def __getitem__(self, name: str) -> int:
        return ctypes.c_int64.in_dll(self._library, f"test_{name}").value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int64.in_dll(self._library, f"test_{name}").value = value

    def alive(self) -> tuple[int, int, int, int]:
        """Return the numbers of live tensors, lists and buffers, and of wrong frees."""
        return self["tensors"], self["lists"], self["buffers"], self["wrong_frees"]


@pytest.fixture(scope="session")
def model_library(tmp_path_factory) -> Path:
    return build(HERE / "model.c", tmp_path_factory.mktemp("model") / "model.so")


@pytest.fixture
def counts(model_library) -> Iterator[Counts]:
    """Yield the counters of the library, and assert that the test has no leaks or wrong frees."""
    found = Counts(model_library)
    before = found.alive()
    yield found
    assert found.alive() == before


@pytest.fixture
def tagged_library(tmp_path) -> Callable[..., Path]:
    def build_(tag: str, number: float) -> Path:
        flags = [f"-DTAG={tag}", f"-DNUMBER={float(number)}f", f"-DFILE_STEM={tag}"]
        return build(HERE / "tagged.c", tmp_path / f"{tag}.so", *flags)

    return build_


@pytest.fixture
def clean_path(tmp_path, monkeypatch) -> Path:
    """Set PATH to a new folder of programs without onnx-mlir and engines, and return the folder.

    The folder contains a C compiler. Without one, the test is skipped.
    """
    for name in ("ONNXFOLD_ONNX_MLIR", "ONNXFOLD_CONTAINER_ENGINE", "ONNXFOLD_ONNX_MLIR_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    if CC is None:
        pytest.skip("there is no C compiler")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("cc", "as", "ld", "sh", "sleep", "timeout"):
        found = shutil.which(name)
        if found is not None:
            (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    return programs


@pytest.fixture
def compiler(clean_path) -> Path:
    return written_double(clean_path / "onnx-mlir")


@pytest.fixture
def work() -> Iterator[Path]:
    with work_folder() as folder:
        yield folder


class Engine:
    """The test double of a container engine, and its recorded calls."""

    IMAGE = "sha256:" + "5eed" * 16

    def __init__(self, path: Path, state: Path) -> None:
        self.path = path
        self.state = state
        state.mkdir()
        self.does(images={"ghcr.io/onnxmlir/onnx-mlir": self.IMAGE})

    def does(self, **behaviour: object) -> None:
        behaviour.setdefault("images", {"ghcr.io/onnxmlir/onnx-mlir": self.IMAGE})
        (self.state / "engine.json").write_text(json.dumps(behaviour))

    def calls(self) -> list[list[str]]:
        file = self.state / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def engine(clean_path, tmp_path, monkeypatch) -> Engine:
    monkeypatch.setenv("ENGINE_DOUBLE", str(tmp_path / "engine"))
    docker = python_program(clean_path / "docker", HERE / "engine_double.py")
    return Engine(docker, tmp_path / "engine")
