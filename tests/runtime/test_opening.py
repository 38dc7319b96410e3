"""Test the weights, temporary files and options of a session on a model."""

import contextlib
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import psutil
import pytest
from model_table import external as external_tensor
from mounts import mounted
from reference_session import reference_session
from runtime_models import TEXTS, assert_same, parse, random, session_on

from onnxfold.ir import storage
from onnxfold.runtime.bundles.manifest import ENTRY_FILE
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session
from onnxfold.support import files
from onnxfold.support.errors import OnnxFoldError, UsageError
from onnxfold.support.files import end_unused_mappings
from onnxfold.support.system import CAN_REMOVE_OPEN_FILES

KEY = "session.model_external_initializers_file_folder_path"
TENSOR = 64 * 64 * 4
FEEDS = {"x": random(3, 64, seed=11), "r": random(64, 64, seed=12)}


def example(seed: int = 0) -> onnx.ModelProto:
    w = random(64, 64, seed=seed)
    v = random(1, 64, seed=seed + 1)
    u = random(64, 64, seed=seed + 2)
    return parse("weights in both parts", w=w, v=v, u=u)


def saved(model: onnx.ModelProto, path: Path, external: bool) -> None:
    storage.save(storage.from_proto(model), path, external_data=external, fsync=False)


def write(folder: Path, *, external: bool, seed: int = 0) -> Path:
    path = folder / "model.onnx"
    saved(example(seed), path, external)
    return path


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Use a new folder for temporary files, and return the path of the folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@contextlib.contextmanager
def writing(*nbytes: int) -> Iterator[None]:
    """Assert that a block writes as many tensors of 16 KiB as one element of ``nbytes``.

    Everything else that the block writes must take less than 16 KiB.
    """

    def written() -> int:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))

    before = written()
    yield
    assert (written() - before) // TENSOR in nbytes


def opened(path, **arguments) -> Session:
    return session_on(path, "r", backend="onnxruntime", **arguments)


def assert_computes(session, want, feeds=FEEDS):
    assert_same(session.run(None, feeds), want)


def original(path: Path | str, feeds=FEEDS):
    return reference_session(path).run(None, feeds)


def left(temporary: Path) -> list[Path]:
    """Return the paths in a folder, without lock files.

    On Windows, subfolders with mapped files are omitted, because Windows cannot remove them.
    """
    if CAN_REMOVE_OPEN_FILES:
        return [path for path in temporary.iterdir() if not path.name.endswith("lock")]
    end_unused_mappings()
    with files.scratch_folder("left"):  # removes folders whose files are no longer mapped
        pass
    mapped = {mapping.path for mapping in psutil.Process().memory_maps()}
    found = [path for path in temporary.iterdir() if not path.name.endswith("lock")]
    return [path for path in found if not mapped.intersection(map(str, path.iterdir()))]


def assert_left(temporary: Path, count: int) -> None:
    """Assert the number of subfolders that are kept for later sessions.

    On Windows, there may be fewer, because `left` omits subfolders with mapped files.
    """
    found = len(left(temporary))
    assert found == count if CAN_REMOVE_OPEN_FILES else found <= count


@pytest.mark.parametrize("external", [True, False], ids=["external", "in the file"])
@pytest.mark.parametrize("specialize", [False, True])
def test_a_session_computes_the_same_and_leaves_no_files(tmp_path, temporary, external, specialize):
    path = write(tmp_path, external=external)
    want = original(path)
    session = opened(path, specialize=specialize)
    assert left(temporary) == []
    assert_computes(session, want)
    assert_left(temporary, specialize)  # for later settings
    del session
    gc.collect()
    assert left(temporary) == []


def test_weights_in_a_data_file_are_mapped(tmp_path, temporary):
    path = write(tmp_path, external=True)
    with writing(1):  # the computed tensor t
        session = opened(path)
    with writing(0):  # runtime_fold maps w in the data file, too
        session.fold({"r": FEEDS["r"]})
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert f"{path}.data" in maps.read_text(encoding="utf-8")
    assert_computes(session, original(path))


def test_weights_in_an_unchanged_file_are_not_read_until_they_are_folded(tmp_path, monkeypatch):
    model = parse("g (float[n] x, float r) => (float[n] y) { k = Mul(w, r) y = Mul(x, k) }")
    model.graph.initializer.append(external_tensor("w", [1 << 32], location="data"))
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "data").write_bytes(random(16).tobytes())
    os.truncate(tmp_path / "data", 4 << 32)  # a sparse file
    monkeypatch.setattr("time.time_ns", lambda: 1 << 61)
    begin = time.process_time()
    opened(tmp_path / "model.onnx")
    assert time.process_time() - begin < 4


def test_sessions_share_the_folds_of_a_file_until_it_is_changed(tmp_path, monkeypatch):
    cache = FoldCache()
    folds = list[int]()
    path = tmp_path / "model.onnx"
    for seed, now in [(1, 0), (1, 0), (1, 1 << 61), (1, 1 << 61), (2, 1 << 61), (2, 1 << 61)]:
        monkeypatch.setattr("time.time_ns", lambda now=now: now)
        if len(folds) in (0, 4):
            onnx.save(example(seed), path)  # overwrites the file
        session = opened(path, cache=cache)
        assert_computes(session, original(path))
        folds.append(session.fold_statistics().folds)
    assert folds == [1, 0, 1, 0, 1, 0]


def test_sessions_of_settings_share_the_weights(tmp_path, temporary):
    path = write(tmp_path, external=True)
    session = opened(path, specialize=True)
    for seed in (1, 2, 3):
        feeds = {**FEEDS, "r": random(64, 64, seed=seed)}
        want = original(path, feeds)
        with contextlib.nullcontext() if seed == 1 else writing(0):
            handle = session.fold({"r": feeds["r"]})
            assert_computes(handle, want, {"x": feeds["x"]})
    assert_left(temporary, 1)  # prepacked weights of entry, for all settings


def test_only_misaligned_weights_in_the_model_file_are_copied(tmp_path, temporary):
    path = write(tmp_path, external=False)
    place = path.read_bytes().find(random(64, 64).tobytes())
    assert place > 0
    with writing(1 if place % 64 == 0 else 2):
        opened(path)


def test_the_weights_of_a_model_in_memory_become_mapped(temporary):
    """The session replaces the weights by views of a file, which onnxruntime also maps."""
    session = opened(example())
    tensors = [v.const_value for v in session.bundle.load(ENTRY_FILE).graph.initializers.values()]
    large = [tensor for tensor in tensors if tensor.nbytes >= 4096]
    assert large and all(storage.span_of(tensor) is not None for tensor in large)
    assert left(temporary) == []
    want = reference_session(example()).run(None, FEEDS)
    assert_computes(session, want)
    session.set_providers(["CPUExecutionProvider"])  # opens entry again
    assert_computes(session, want)


@pytest.mark.parametrize("data_too", [False, True], ids=["model", "model and data"])
def test_weights_are_mapped_through_symbolic_links(tmp_path, temporary, data_too):
    """Models in content-addressed stores consist of symbolic links to files."""
    store = tmp_path / "store"
    view = tmp_path / "view"
    store.mkdir()
    view.mkdir()
    write(store, external=True)
    want = original(store / "model.onnx")
    if data_too:
        os.rename(store / "model.onnx", store / "1f2e")
        os.rename(store / "model.onnx.data", store / "3d4c")
        (view / "model.onnx").symlink_to("../store/1f2e")
        (view / "model.onnx.data").symlink_to("../store/3d4c")
    else:
        (tmp_path / "link").symlink_to(store)
        view = tmp_path / "link"
    with writing(1):
        session = opened(view / "model.onnx")
    assert_computes(session, want)


@pytest.mark.parametrize("in_file", [True, False], ids=["path", "in memory"])
def test_a_model_that_onnxruntime_cannot_open_is_an_error(in_file, tmp_path):
    """onnxruntime rejects the model, because the operands of Add have incompatible sizes."""
    model = parse(
        """g (float[2, 4] x, float[4, 64] r) => (float[2, 64] y) {
        e = Exp(r) s = Softmax(e) z = MatMul(x, s) y = Add(z, w) }""",
        w=random(2, 65),
    )
    source = model
    if in_file:
        onnx.save(model, tmp_path / "m.onnx")
        source = tmp_path / "m.onnx"
    with pytest.raises(OnnxFoldError, match=r"onnxruntime cannot open the .*Add") as error:
        Session(source, runtime_constants=["r"], backend="onnxruntime")
    assert "ONNXRuntimeError" not in str(error.value)
    assert error.value.file == (str(source) if in_file else None)


@pytest.mark.parametrize("kind", ["files", "initializers"])
def test_options_with_data_in_memory_are_refused(kind, tmp_path):
    given = ort.SessionOptions()
    data = random(64, 64).tobytes()
    value = ort.OrtValue.ortvalue_from_numpy(random(64, 64))
    if kind == "files":
        given.add_external_initializers_from_files_in_memory(["m.data"], [data], [len(data)])
    else:
        given.add_external_initializers(["w"], [value])
    with pytest.raises(UsageError, match="sess_options provide external data or initializers in"):
        session_on(example(), "r", sess_options=given)


def test_nothing_is_written_beside_the_model(tmp_path, temporary):
    folder = tmp_path / "models"
    folder.mkdir()
    model = write(folder, external=True)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    before = (folder.stat().st_mtime_ns, sorted(folder.iterdir()))
    try:
        assert_computes(opened(model), original(model))
        assert (folder.stat().st_mtime_ns, sorted(folder.iterdir())) == before
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("external", [True, False], ids=["external", "in the file"])
@pytest.mark.parametrize("specialize", [False, True])
def test_a_session_computes_the_same_after_its_model_is_replaced(
    tmp_path, temporary, external, specialize
):
    path = write(tmp_path, external=external)
    want = original(path)
    session = opened(path, specialize=specialize)
    write(tmp_path, external=external, seed=50)
    assert original(path)[0].tobytes() != want[0].tobytes()
    assert_computes(session, want)  # opens runtime_fold and, with specialize, another session
    session.set_providers(["CPUExecutionProvider"])  # opens entry again
    assert_computes(session, want)
    path.unlink()
    session.set_providers(["CPUExecutionProvider"])
    assert_computes(session, want)
    assert_left(temporary, specialize)


def test_a_session_computes_the_same_after_external_data_are_replaced(tmp_path, temporary):
    """A tensor of onnx-ir opens its file only when the tensor is read."""
    path = write(tmp_path, external=True)
    want = original(path)
    session = opened(ir.load(path))
    write(tmp_path, external=True, seed=50)
    assert_computes(session, want)


def test_a_file_may_be_replaced_while_it_is_opened(tmp_path, temporary, monkeypatch):
    path = write(tmp_path, external=True)
    want = original(path)
    real = ort.InferenceSession
    pending = [lambda: write(tmp_path, external=True, seed=50)]

    def late(content, *arguments, **named):
        if pending and isinstance(content, bytes) and b"model.onnx.data" in content:
            pending.pop()()
        return real(content, *arguments, **named)

    monkeypatch.setattr(ort, "InferenceSession", late)
    session = opened(path)
    assert not pending
    assert_computes(session, want)


def test_a_failure_leaves_no_files(tmp_path, temporary):
    text = TEXTS["weights in both parts"].replace(
        "y = MatMul(b, t)", "q = MatMul(b, t)\n y = local.Unknown(q)"
    )
    model = parse(text, w=random(64, 64), v=random(1, 64), u=random(64, 64))
    with pytest.raises(Exception, match="Unknown"):
        opened(model)
    assert left(temporary) == []


def test_files_of_a_dead_process_are_removed(tmp_path, temporary):
    for name in (".weights-0123abcd.onnxfold-lock", ".weights-0123abcd.onnxfold-0123abcd.tmp"):
        (temporary / name).write_bytes(b"")
    opened(write(tmp_path, external=False))
    assert not left(temporary)


def test_a_full_folder_of_temporary_files_is_an_error(tmp_path, monkeypatch):
    path = write(tmp_path, external=False)
    for disk in mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=8k", "tmpfs"):
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with pytest.raises(OnnxFoldError, match="No space left"):
            opened(path)
        assert left(disk) == []
    monkeypatch.setattr(tempfile, "gettempdir", lambda: os.stat(tmp_path / "none"))
    with pytest.raises(OnnxFoldError, match="temporary files: cannot be written: No such file"):
        opened(path)


def test_weights_in_branches_and_in_nodes(tmp_path, temporary):
    model = parse("weights of branches", w=random(64, 64))
    branch = next(a.g for n in model.graph.node for a in n.attribute if a.g.name == "no")
    branch.initializer.append(onnx.numpy_helper.from_array(random(64, 64, seed=5), "inner"))
    value = onnx.numpy_helper.from_array(random(64, 64, seed=6))
    branch.node.insert(0, onnx.helper.make_node("Constant", [], ["own"], value=value))
    for external in (True, False):
        path = tmp_path / f"{external}.onnx"
        saved(model, path, external)
        session = opened(path)
        for c in (True, False):
            feeds = {"x": FEEDS["r"], "r": random(64, 64, seed=3), "c": np.array(c)}
            assert_computes(session, reference_session(model).run(None, feeds), feeds)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "bool", "int64", "uint4"])
def test_weights_may_have_any_type(tmp_path, temporary, name):
    dtype = ir.DataType[name.upper()]
    array = np.random.default_rng(0).integers(0, 2, (64, 128)).astype(dtype.numpy())
    model = parse("a scaled table")
    model.graph.initializer.append(ir.to_proto(ir.tensor(array, dtype=dtype, name="w")))
    feeds = {"i": np.array([5]), "r": random(128, seed=1)}
    for external in (True, False):
        path = tmp_path / f"{external}.onnx"
        saved(model, path, external)
        for fold_at in ("compile", "runtime"):
            session = opened(path, fold_at=fold_at)
            assert_computes(session, reference_session(model).run(None, feeds), feeds)


def test_weights_may_exceed_two_gibibytes(tmp_path, temporary):
    """The data file is sparse, because only the last row of the table is written."""
    rows = 5 << 20
    columns = 128
    path = tmp_path / "large.onnx"
    model = parse("rows of a table")
    size = rows * columns * 4
    place = {"location": "large.data", "offset": "0", "length": str(size)}
    model.graph.initializer.append(external_tensor("table", [rows, columns], **place))
    path.write_bytes(model.SerializeToString())
    with open(tmp_path / "large.data", "wb") as file:
        file.truncate(size)
        file.seek(size - columns * 4)
        file.write(random(columns).tobytes())
    assert size > 1 << 31
    feeds = {"ids": np.array([0, rows - 1]), "r": random(1)}
    with writing(0):
        session = opened(path)
    assert_computes(session, original(path, feeds), feeds)


def test_session_options_are_not_modified_and_nothing_is_printed(tmp_path, capfd):
    options = ort.SessionOptions()
    path = write(tmp_path, external=True)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    opened(path, sess_options=options)
    session = opened(path, sess_options=options)
    with pytest.raises(RuntimeError, match="does not have"):
        options.get_session_config_entry(KEY)
    whole = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    got = session.run(None, FEEDS)
    want = whole.run(None, FEEDS)
    assert got[0].shape == want[0].shape
    assert capfd.readouterr() == ("", "")


def test_session_options_without_a_getter_are_used(tmp_path):
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = 1
    options.logid = "mine"
    session = opened(write(tmp_path, external=True), sess_options=options)
    assert session.get_inputs()[0].shape == [3, 64]
    used = session.get_session_options()
    assert used.get_session_config_entry("session.disable_prepacking") == "1"
    assert (used.intra_op_num_threads, used.logid) == (1, "mine")


def test_a_profile_contains_the_nodes_of_entry(tmp_path):
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = opened(write(tmp_path, external=True), sess_options=options)
    assert options.enable_profiling
    session.run(None, FEEDS)
    session.end_profiling()
    (profile,) = tmp_path.glob("profile*")
    assert "MatMul" in profile.read_text()


def test_a_model_that_onnxruntime_writes_is_complete(tmp_path):
    """If entry were opened from memory, the written model would lack the weights."""
    path = write(tmp_path, external=False)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    session = opened(path, sess_options=options)
    assert options.optimized_model_filepath == str(tmp_path / "optimized.onnx")
    assert "w" in storage.load(tmp_path / "optimized.onnx").graph.initializers
    assert session.run(None, FEEDS)[0].shape == (3, 64)
