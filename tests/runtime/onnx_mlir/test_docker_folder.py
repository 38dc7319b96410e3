"""Test that the files in docker/ match each other, the project and the backend.

The tests do not build the image, because this requires a container engine.
"""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import Engine
from double import program

from onnxfold.runtime.backends import onnx_mlir as commands
from onnxfold.runtime.backends.onnx_mlir import IMAGE, UPSTREAM_IMAGE, Tool

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE = (DOCKER / "compose.yaml").read_text()
README = (DOCKER / "README.md").read_text()


def test_image_is_pinned_by_a_required_digest():
    assert re.findall(r"^ARG (ONNX_MLIR_\w+)(.*)$", DOCKERFILE, re.MULTILINE) == [
        ("ONNX_MLIR_IMAGE", f"={UPSTREAM_IMAGE}"),
        ("ONNX_MLIR_DIGEST", ""),
    ]
    bases = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert bases == [
        ("${ONNX_MLIR_IMAGE}@${ONNX_MLIR_DIGEST}", "onnxfold"),
        ("onnxfold", "tests"),
    ]
    assert "${ONNX_MLIR_DIGEST:?" in COMPOSE


def test_copied_files_exist_and_are_not_ignored():
    copied = re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE)
    names = [name for line in copied for name in line.split()]
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    assert lines[0] == "*" and set(names) == sent
    assert all((ROOT / name).exists() for name in names)
    assert {"pyproject.toml", "README.md", "LICENSE", "onnxfold", "rules"} <= set(names)


def test_readme_shows_the_command_line(tmp_path):
    shown = re.search(r"```text\n(docker run.*?)```", README, re.DOTALL)[1].split()
    folder = Path("/DIR")
    container = Tool("docker", "", "sha256:ID", ("--memory=BYTES", "--user=UID:GID"))
    arguments = commands.arguments(commands.flags(), "--EmitLib", "NAME", folder, "NAME")
    words = container.command(folder, arguments, "onnxfold-RANDOM")
    made = [word.replace("/DIR", "DIR") for word in words]
    # the command lines of other machines and older CPUs lack these options
    target = {w for w in shown if w.startswith(("--march", "--mcpu"))} - set(made)
    assert [w for w in shown if w not in target] == made


@pytest.mark.parametrize("digest", ["", "sha256:" + "ab" * 32])
def test_pull_prints_the_reference_of_the_image(engine, digest):
    reference = f"{UPSTREAM_IMAGE}@{digest}" if digest else f"{UPSTREAM_IMAGE}:latest"
    engine.does(images={reference: Engine.IMAGE})
    done = subprocess.run([DOCKER / "pull", *digest.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert engine.calls()[:2] == [["info"], ["pull", reference]]
    assert done.stdout.endswith(f"export {IMAGE}={reference}\n")


def test_pull_uses_the_next_engine_if_one_does_not_answer(engine, clean_path, monkeypatch):
    engine.does(down="Cannot connect to the Docker daemon")
    done = subprocess.run([DOCKER / "pull"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Cannot connect to the Docker daemon" in done.stderr
    assert "no container engine answers (docker podman)" in done.stderr
    program(clean_path / "podman", 'echo podman "$1"')
    done = subprocess.run([DOCKER / "pull"], capture_output=True, text=True)
    assert done.returncode == 0 and "podman pull" in done.stdout
    monkeypatch.setenv("ONNXFOLD_CONTAINER_ENGINE", "docker")
    assert subprocess.run([DOCKER / "pull"], capture_output=True).returncode == 1
