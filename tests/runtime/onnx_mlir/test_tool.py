import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import pytest
from conftest import Engine
from double import program, written_double
from runtime_models import parse

from onnxfold.runtime.backends import onnx_mlir as commands
from onnxfold.runtime.backends.base import CompileError, memory_limit
from onnxfold.runtime.backends.onnx_mlir import OnnxMlir, Tool, find_tool

PATIENCE = 600
"""Seconds that a run may take on a busy machine."""
MODEL = parse("agraph (float[N] x) => (float[N] y) { y = Exp(x) }").SerializeToString()


MEMORY = f"--memory={memory_limit()}"


def missing() -> str:
    with pytest.raises(CompileError) as caught:
        find_tool()
    return str(caught.value)


def test_binary_in_the_variable_is_preferred(compiler, engine, tmp_path, monkeypatch):
    other = written_double(tmp_path / "elsewhere" / "onnx-mlir")
    found = find_tool()
    assert not found.image and found.program == str(compiler)
    monkeypatch.setenv("ONNXFOLD_ONNX_MLIR", str(other))
    found = find_tool()
    assert not found.image and found.program == str(other)
    assert "onnx-mlir version 0.0.0-double" in found.identity
    assert not engine.calls()


def test_invalid_binary_in_the_variable_is_an_error(compiler, monkeypatch):
    monkeypatch.setenv("ONNXFOLD_ONNX_MLIR", "/nowhere/onnx-mlir")
    assert missing() == "ONNXFOLD_ONNX_MLIR is not a program: /nowhere/onnx-mlir"


def test_relative_paths_of_programs_are_resolved(compiler, engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONNXFOLD_ONNX_MLIR", "programs/onnx-mlir")
    assert find_tool().program == str(tmp_path / "programs" / "onnx-mlir")
    monkeypatch.delenv("ONNXFOLD_ONNX_MLIR")
    compiler.unlink()
    monkeypatch.setenv("ONNXFOLD_CONTAINER_ENGINE", "programs/docker")
    assert find_tool().program == str(tmp_path / "programs" / "docker")


def test_binary_that_does_not_run_is_reported(clean_path):
    path = program(clean_path / "onnx-mlir", "echo lib not found >&2; exit 127")
    assert missing() == f"{path} does not run: lib not found"


def test_missing_compiler_and_engine_are_reported(clean_path):
    assert missing() == (
        "onnx-mlir is not on the PATH, and there is no container engine; install docker or podman "
        "and run 'docker pull ghcr.io/onnxmlir/onnx-mlir', or set ONNXFOLD_ONNX_MLIR to the "
        "compiler"
    )


def test_engine_runs_its_image_by_digest(engine):
    found = find_tool()
    options = (MEMORY, f"--user={os.getuid()}:{os.getgid()}")
    assert found == Tool(str(engine.path), "", Engine.IMAGE, options)
    assert found.identity == f"image {Engine.IMAGE}"
    asked = [call for call in engine.calls() if call[0] != "info"]
    assert asked == [["image", "inspect", "--format={{.Id}}", "ghcr.io/onnxmlir/onnx-mlir"]]


def test_image_can_be_selected(engine, monkeypatch):
    pinned = "ghcr.io/onnxmlir/onnx-mlir@sha256:" + "ab" * 32
    engine.does(images={pinned: "ff" * 32})  # podman prints IDs without "sha256:"
    assert "No such image" in missing()
    monkeypatch.setenv("ONNXFOLD_ONNX_MLIR_IMAGE", pinned)
    found = find_tool()
    assert found.image == "sha256:" + "ff" * 32


def test_second_engine_is_used_if_the_first_does_not_run(engine, clean_path, monkeypatch):
    program(clean_path / "podman", f"echo {'12' * 32}")
    engine.does(down="Cannot connect to the Docker daemon")
    found = find_tool()
    assert found.image and found.program == str(clean_path / "podman")
    assert "--security-opt=label=disable" in found.options
    monkeypatch.setenv("ONNXFOLD_CONTAINER_ENGINE", "docker")
    reason = missing()
    assert reason == (
        "onnx-mlir is not on the PATH, and its container image is missing: "
        "docker: Cannot connect to the Docker daemon; get the image with "
        "'docker pull ghcr.io/onnxmlir/onnx-mlir'"
    )
    monkeypatch.setenv("ONNXFOLD_CONTAINER_ENGINE", "nerdctl")
    assert "ONNXFOLD_CONTAINER_ENGINE is not a program: nerdctl" in missing()


def test_the_exact_command_lines(tmp_path):
    folder = tmp_path / "work"
    arguments = commands.arguments(commands.flags(), "--EmitLib", "c0ffee", folder, "c0ffee")
    target = [f for f in commands.flags() if f.startswith(("--march", "--mcpu"))]
    assert arguments == [
        "-O3",
        *target,
        "--disable-constant-prop",
        "--verifyInputTensors=false",
        "--EmitLib",
        "--tag=c0ffee",
        "-o",
        f"{folder}/c0ffee",
        f"{folder}/model.onnx",
    ]
    contained = Tool("/usr/bin/docker", "", "sha256:1", ("--user=7:8",))
    assert contained.command(folder, arguments, "NAME") == [
        "/usr/bin/docker",
        "run",
        "--rm",
        "--pull=never",
        "--network=none",
        "--name=NAME",
        "--stop-signal=KILL",
        "--sig-proxy=false",
        "--user=7:8",
        f"--mount=type=bind,source={folder},target={folder}",
        f"--workdir={folder}",
        "--entrypoint=onnx-mlir",
        "sha256:1",
        *arguments,
    ]


def test_container_runs_as_the_current_user(engine, clean_path, monkeypatch):
    def options() -> tuple[str, ...]:
        found = find_tool()
        assert found.image
        return found.options

    monkeypatch.setattr(os, "getgid", lambda: 1001)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert options() == (MEMORY, "--user=1000:1001")
    engine.does(security="[name=seccomp,profile=builtin name=rootless]")
    assert options() == (MEMORY, "--user=0:0")  # rootless docker maps the current user to root
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert options() == (MEMORY, "--user=0:1001")
    engine.path.unlink()
    program(clean_path / "podman", f"echo {'12' * 32}")
    assert options() == ("--security-opt=label=disable", "--user=0:1001")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert options() == ("--userns=keep-id", "--security-opt=label=disable", "--user=1000:1001")


@pytest.mark.parametrize(
    ("stage", "flag"), [("1-onnx", "EmitONNXIR"), ("2-mlir", "EmitMLIR"), ("3-llvm", "EmitLLVMIR")]
)
def test_the_command_lines_of_the_stages(compiler, tmp_path, monkeypatch, stage, flag):
    monkeypatch.setenv("DOUBLE_CALLS", str(tmp_path / "calls"))
    OnnxMlir().dump(MODEL, tmp_path, seconds=PATIENCE)
    assert (tmp_path / f"{stage}.mlir").is_file()
    (call,) = [c for c in (tmp_path / "calls").read_text().splitlines() if f"--{flag}" in c]
    words = " ".join([*commands.flags(), f"--{flag}", "--tag=NONE"])
    assert re.fullmatch(rf"{re.escape(words)} -o (/\S+)/{stage} \1/model\.onnx", call)


@pytest.mark.parametrize(
    ("machine", "level", "target"),
    [
        ("x86_64", "", ["--march=x86-64"]),
        ("x86_64", "x86-64-v3", ["--march=x86-64", "--mcpu=x86-64-v3"]),
        ("s390x", "", []),
    ],
)
def test_flags_select_the_architecture_of_x86_only(monkeypatch, machine, level, target):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(commands, "cpu_levels", lambda: (level,) if level else ())
    rest = ["--disable-constant-prop", "--verifyInputTensors=false"]
    assert commands.flags() == ["-O3", *target, *rest]


def test_docker_supports_the_options(tmp_path):
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("docker is not installed")
    done = subprocess.run([docker, "run", "--help"], capture_output=True, text=True)
    known = set(re.findall(r"--[a-z-]+", done.stdout))
    options = ("--userns=host", "--security-opt=label=disable", MEMORY, "--user=0:0")
    command = Tool(docker, "", "sha256:1", options).command(tmp_path, [], "NAME")
    used = {w.partition("=")[0] for w in command if w.startswith("--")}
    assert {"--pull", "--network", "--mount"} <= used <= known


def test_only_the_folder_is_accessible_in_the_container(engine, work, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    tool = find_tool()
    with pytest.raises(CompileError, match=r"failed \(exit code 3\): .*/passwd"):
        tool.run(work, ["/etc/passwd"], PATIENCE)
    call = engine.calls()[-1]
    assert [w for w in call if w.startswith(("--volume", "--mount", "--env"))] == [
        f"--mount=type=bind,source={work},target={work}"
    ]
    assert f"--user={os.getuid()}:{os.getgid()}" in call and "--network=none" in call
    assert not {"-t", "-i", "-ti", "-it", "--tty", "--interactive"} & set(call)


@pytest.mark.parametrize("name", ["a,comma", 'a"quote', 'a,"b"', "with:colon", "with space"])
def test_a_folder_of_any_name_is_mounted(engine, tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    (file,) = OnnxMlir().compile(MODEL, tmp_path / "k", seconds=PATIENCE).files
    assert file == tmp_path / "k.so" and file.stat().st_size
    assert engine.calls()[-1][0] == "run"
    assert not list((tmp_path / name).iterdir())


NO_ROOM = "LLVM ERROR: IO failure on output stream: No space left on device"


@pytest.mark.parametrize(
    ("code", "stderr", "message"),
    [
        (1, "", r"onnx-mlir failed \(exit code 1\): failed to legalize 'onnx.Det'"),
        (125, "", r"onnx-mlir failed \(exit code 125\)"),
        (134, "", r"onnx-mlir crashed \(signal 6\)"),
        (139, "", r"onnx-mlir crashed \(signal 11\)"),
        (1, f"linking\n{NO_ROOM}", rf"onnx-mlir failed \(exit code 1\): {NO_ROOM}"),
    ],
)
def test_exit_codes_raise_errors_with_the_reason(engine, work, code, stderr, message):
    usual = "warning: old flag\nloc(\"d\"): error: failed to legalize 'onnx.Det'\nmore"
    engine.does(exit=code, stderr=stderr or usual)
    with pytest.raises(CompileError, match=message) as caught:
        find_tool().run(work, [], PATIENCE)
    assert "\n" not in str(caught.value)


def test_a_container_that_takes_too_long_is_removed(engine, work):
    engine.does(sleep=10 * PATIENCE)
    for seconds in (0.5, 5, 50, PATIENCE):  # on a busy machine, the engine starts late
        with pytest.raises(CompileError, match=f"longer than {seconds} s"):
            find_tool().run(work, [], seconds)
        *_, run, removal = engine.calls()
        if run[0] == "run":
            break
    started = next(w for w in run if w.startswith("--name="))
    assert removal == ["rm", "--force", started.partition("=")[2]]


def test_a_container_is_removed_when_the_user_interrupts(engine, work, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def when_it_has_begun() -> None:
        while engine.calls()[-1][0] != "run":
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)

    engine.does(sleep=10 * PATIENCE)
    tool = find_tool()
    before = signal.signal(signal.SIGUSR1, interrupt)
    waiting = threading.Thread(target=when_it_has_begun)
    waiting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            tool.run(work, [], PATIENCE)
    finally:
        waiting.join()
        signal.signal(signal.SIGUSR1, before)
    assert engine.calls()[-1][:2] == ["rm", "--force"]


def test_a_client_that_is_killed_leaves_no_container(engine, work):
    engine.does(kill=True)
    with pytest.raises(CompileError, match="signal 9"):
        find_tool().run(work, [], PATIENCE)
    assert engine.calls()[-1][:2] == ["rm", "--force"]


def test_missing_binary_is_reported(tmp_path):
    with pytest.raises(CompileError, match="/nowhere: No such file"):
        Tool("/nowhere").run(tmp_path, [], 1)


def test_flags_in_the_environment_are_ignored(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("ONNX_MLIR_FLAGS", "--enable-fast-math")
    with pytest.raises(CompileError, match="exit code 6"):  # 13 if the variable is set
        OnnxMlir().compile(b"no model", tmp_path / "k", seconds=PATIENCE)
