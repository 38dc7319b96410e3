"""Test onnxfold on simulated macOS and Windows. On Windows, files in use cannot be replaced."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper
from processes import python

from onnxfold.support.files import prefix
from tests.portability.posix_only import POSIX_ONLY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the simulations require Linux")

ROOT = Path(__file__).parents[2]

START = """
import gc, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import tests.portability.SIMULATION
import numpy as np
import onnxfold
from onnxfold.ir import storage
from onnxfold.support import isolated, system
folder = Path(sys.argv[2])

def names():
    return sorted(os.listdir(folder))

def weight(model):
    return model.graph.initializers["w"].const_value.numpy()
"""


def run(
    code: str, folder: Path, simulation: str = "as_on_windows", arguments: tuple[str, ...] = ()
) -> str:
    program = START.replace("SIMULATION", simulation) + code
    return python("-c", program, ROOT, folder, *arguments, cwd=folder.parent)


both = pytest.mark.parametrize("simulation", ["as_on_macos", "as_on_windows"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    import numpy as np

    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[512, 512] x) => (float[512, 512] y) { t = Neg(w) y = MatMul(x, t) }"""
    )
    w = np.arange(512 * 512, dtype=np.float32).reshape(512, 512)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    folder = tmp_path / "models"
    folder.mkdir()
    options = {"save_as_external_data": True, "location": "m.onnx.data", "size_threshold": 0}
    onnx.save(proto, folder / "m.onnx", **options)
    for name in ("cache", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    yield folder
    assert not {*(tmp_path / "temporary").iterdir()} - {tmp_path / "temporary" / ".ses"}


def test_every_skipped_test_exists():
    for name in POSIX_ONLY:
        path, _, function = name.partition("[")[0].partition("::")
        assert f"def {function}" in (ROOT / path).read_text(encoding="utf-8"), name


def test_processes_of_pytest_simulate_windows(tmp_path):
    (tmp_path / "test_system.py").write_text(
        "def test_it(worker_id):\n"
        "    from onnxfold.support import system\n"
        "    assert worker_id == 'gw0' and not system.CAN_REMOVE_OPEN_FILES\n"
    )
    options = ["-n", "1", "-p", "tests.portability.as_on_windows", "--rootdir", tmp_path]
    assert "1 passed" in python("-m", "pytest", *options, tmp_path, cwd=ROOT)


def test_mapped_files_cannot_be_replaced(folder):
    code = """
assert not system.CAN_REMOVE_OPEN_FILES
model = storage.load(folder / "m.onnx")
before = weight(model).copy()
for change in (lambda: os.unlink("models/m.onnx.data"), lambda: os.replace("a", "models/m.onnx")):
    Path("a").write_text("other")
    try:
        change()
    except PermissionError:
        continue
    raise AssertionError
"""
    run(code, folder)


def test_loaded_model_is_valid_after_overwriting_its_files(folder):
    code = """
model = storage.load(folder / "m.onnx")
before = weight(model).copy()
storage.save(model, folder / "m.onnx")
assert [name for name in names() if not name.endswith(".tmp")] == ["m.onnx", "m.onnx.data"]
assert len(names()) == 4, names()
assert (weight(model) == before).all()

storage.save(model, folder / "m.onnx", external_data=False)
assert (weight(model) == before).all()
assert (weight(storage.load(folder / "m.onnx")) == before).all()
assert "m.onnx.data" not in names()

del model
gc.collect()
assert names() == ["m.onnx"], names()
"""
    run(code, folder)


def test_next_save_removes_replaced_files_of_an_ended_process(folder):
    code = """
model = storage.load(folder / "m.onnx")
storage.save(model, folder / "m.onnx")
assert len(names()) == 4
os._exit(0)
"""
    run(code, folder)
    assert len([*folder.iterdir()]) == 4
    run("storage.save(storage.load(folder / 'm.onnx'), folder / 'm.onnx'); gc.collect()", folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["m.onnx", "m.onnx.data"]


KILLED = """
step = int(sys.argv[3])
external = sys.argv[4] == "True"
model = storage.load(folder / "m.onnx")
model.graph.name = "new"
calls = 0

def counted(function):
    def call(*arguments):
        global calls
        calls += 1
        if calls == step:
            os._exit(99)
        return function(*arguments)
    return call

os.rename = counted(os.rename)
os.replace = counted(os.replace)
storage.save(model, folder / "m.onnx", external_data=external)
"""

AFTER_KILL = """
if sys.argv[3] == "load":
    model = storage.load(folder / "m.onnx")
    assert (weight(model) == np.arange(512 * 512, dtype=np.float32).reshape(512, 512)).all()
    print(model.graph.name)
    del model
else:
    from onnxfold.support import files
    with files.locked(str(folder / "m.onnx")):
        assert (folder / "m.onnx").exists()
    print(storage.load(folder / "m.onnx").graph.name)
gc.collect()
storage.save(storage.load(folder / "m.onnx"), folder / "m.onnx", external_data=True)
gc.collect()
assert names() == ["m.onnx", "m.onnx.data"], names()
"""


@pytest.mark.parametrize("external", [True, False])
def test_process_killed_between_renames_loses_no_model(folder, external):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = []
    missing = 0
    for step in range(1, 40):
        for path in folder.iterdir():
            path.unlink()
        for name, content in before.items():
            (folder / name).write_bytes(content)
        program = START.replace("SIMULATION", "as_on_windows") + KILLED
        command = [sys.executable, "-c", program, ROOT, folder, str(step), str(external)]
        code = subprocess.run(command, cwd=folder.parent, check=False).returncode
        if code == 0:
            break
        assert code == 99
        if not (folder / "m.onnx").exists():
            missing += 1
            assert (folder / ".m.onnx.onnxfold-old").exists()
        access = "load" if step % 2 else "lock"
        found.append(run(AFTER_KILL, folder, arguments=(access,)).strip())
    else:
        raise AssertionError("more renames than expected")
    assert missing
    assert [*dict.fromkeys(found)] == ["g", "new"]  # the old model, then the new one


def test_file_in_use_is_an_error_with_a_remedy(folder):
    code = """
kept = open(folder / "m.onnx", "rb")
before = names()
try:
    storage.save(storage.load(folder / "m.onnx"), folder / "m.onnx")
except onnxfold.OnnxFoldError as error:
    print(error)
assert names() == before, names()
"""
    assert "close sessions and programs that use the file" in run(code, folder)


@both
def test_command_line_optimizes_in_place(folder, simulation):
    code = """
from onnxfold.cli import main
assert main(["optimize", str(folder / "m.onnx"), "-o", str(folder / "m.onnx"), "--check", "1"]) == 0
model = storage.load(folder / "m.onnx")
assert [node.op_type for node in model.graph] == ["MatMul"]
"""
    run(code, folder, simulation)
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    assert sorted(names) == ["m.onnx", "m.onnx.data"]
    hidden = [path for path in folder.iterdir() if path.name.startswith(".")]
    assert all(str(path).startswith(prefix(str(folder / "m.onnx"))) for path in hidden)


@both
def test_constants_are_evaluated_in_other_processes(folder, simulation):
    code = """
import onnx.parser
model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    g (float[4] x) => (float[4] y, float[3] v)
    <float[4] w = {3, 1, 2, 4}, int64[1] k = {3}> { y = Neg(x) v, i = TopK(w, k) }''')
made = onnxfold.optimize(model)
assert [node.op_type for node in made.graph.node] == ["Neg"], made
"""
    run(code, folder, simulation)


@both
def test_limits_end_other_processes(folder, simulation):
    (folder.parent / "functions.py").write_text(
        """
import time

def fill(request, arrays):
    held = bytearray(b"x") * request
    time.sleep(1)
    return len(held), []

def work(request, arrays):
    while True:
        pass
"""
    )
    code = """
sys.path.insert(0, os.getcwd())
assert isolated.run("functions:fill", 1 << 28, memory=1 << 28)[0] == 1 << 28
for arguments, kind, code in (
    (dict(request=1 << 29, memory=1 << 26), "MemoryError", system.MEMORY_LIMIT_CODE),
    (dict(cpu_seconds=0.3), "ended", system.CPU_LIMIT_CODE),
    (dict(seconds=3.0, grace=1.0), "late", 0),
):
    name = "functions:fill" if kind == "MemoryError" else "functions:work"
    try:
        isolated.run(name, **arguments)
    except isolated.Failure as failure:
        assert (failure.kind, failure.code) == (kind, code), (failure.kind, failure.code)
    else:
        raise AssertionError(kind)
done = isolated.run_command([sys.executable, "-c", "print('a')"], seconds=30)
assert (done.returncode, done.stdout) == (0, "a\\n")
"""
    run(code, folder, simulation)


@both
def test_bundles_are_replaced_and_run(folder, simulation):
    code = """
for _ in range(2):
    bundle = onnxfold.split(
        folder / "m.onnx", folder / "bundle", runtime_constants=["x"], backend="onnxruntime"
    )
    session = onnxfold.Session(bundle, cache=onnxfold.FoldCache(folder=folder / "folds"))
    x = np.eye(512, dtype=np.float32)
    assert session.run(None, {"x": x})[0][0, 1] == -1
    session.close()
    session = onnxfold.InferenceSession(str(folder / "m.onnx"))
    assert session.run(None, {"x": x})[0][0, 1] == -1
"""
    run(code, folder, simulation)
