"""Test `onnxfold.InferenceSession` against onnxruntime, and its cache of optimized models."""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_table import ROOT, floats, parse, saved, with_weights
from onnxruntime.capi import onnxruntime_pybind11_state
from reference_session import reference_options

import onnxfold
from onnxfold.runtime import kept_models
from onnxfold.support.onnxruntime_sessions import DECIDING
from tests.mounts import mounted

SWIN = ROOT / "models" / "swin.onnx"
DECODER = ROOT / "models" / "t5-decoder.onnx"
CPU = ["CPUExecutionProvider"]

OWN = ("level", "target", "runtime_constants", "max_cache_bytes")
"""The arguments that onnxruntime's class does not have."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a temporary cache folder, and return its folder of optimized models."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "onnxfold" / "sessions"


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


def state(cache: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and change time of each cached file. Both change if a file is replaced."""
    found = [path for entry in entries(cache) for path in entry.iterdir()]
    return {str(path): (path.stat().st_ino, path.stat().st_ctime_ns) for path in found}


def product(seed: int = 0, *, external: str | None = None) -> onnx.ModelProto:
    """Return the model y = x @ transpose(w) + (1 + 2), with a weight of 64 KiB.

    `external` is the location of the weight as external data; None for a weight in the model.
    """
    model = parse(
        """g (float[n, 128] x) => (float[n, 128] y) <float one = {1}, float two = {2}>
        { t = Transpose(w) m = MatMul(x, t) s = Add(one, two) y = Add(m, s) }""",
        17,
    )
    with_weights(model, w=floats(128, 128, seed=seed))
    if external is not None:
        how = {"location": external, "size_threshold": 1024}
        onnx.external_data_helper.convert_model_to_external_data(model, **how)
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(product(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


X = floats(3, 128, seed=1)


def close(session: ort.InferenceSession, seed: int = 0) -> bool:
    """Return whether a session computes `product(seed)`."""
    expected = X @ floats(128, 128, seed=seed).T + 3
    return np.allclose(session.run(None, {"x": X})[0], expected, atol=1e-4)


def feeds_of(session: ort.InferenceSession) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = {"batch": 2, "dec_seq": 3, "enc_seq": 5}
    feeds = {}
    for value in session.get_inputs():
        shape = [sizes.get(dim, dim) for dim in value.shape]
        draw = rng.random(shape, np.float32) if "float" in value.type else rng.integers(0, 2, shape)
        feeds[value.name] = draw
    return feeds


def described(session: ort.InferenceSession) -> list[object]:
    values = [*session.get_inputs(), *session.get_outputs()]
    values += session.get_overridable_initializers()
    about = session.get_modelmeta()
    return [
        [(value.name, value.type, value.shape) for value in values],
        (about.producer_name, about.graph_name, about.domain, about.version, about.description),
        (about.custom_metadata_map, session.get_providers()),
    ]


@pytest.mark.parametrize("model", [SWIN, DECODER])
@pytest.mark.parametrize("start", ["first", "second"])
def test_equal_to_onnxruntime(model: Path, start: str) -> None:
    if start == "second":
        onnxfold.InferenceSession(model)
        onnxfold.InferenceSession(model, reference_options())
    theirs = ort.InferenceSession(model)
    ours = onnxfold.InferenceSession(model)
    assert isinstance(ours, ort.InferenceSession)
    assert described(ours) == described(theirs)
    feeds = feeds_of(theirs)
    for a, b in zip(theirs.run(None, feeds), ours.run(None, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    theirs = ort.InferenceSession(model, reference_options())
    ours = onnxfold.InferenceSession(model, reference_options())
    for a, b in zip(theirs.run(None, feeds), ours.run(None, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


def test_signature() -> None:
    ours, theirs = map(inspect.signature, (onnxfold.InferenceSession, ort.InferenceSession))
    shared = [name for name in ours.parameters if name not in OWN]
    assert shared == list(theirs.parameters)
    for name in shared:
        assert ours.parameters[name].default == theirs.parameters[name].default


@pytest.mark.parametrize("version", [None, 0, 3])
def test_metadata_equals_that_of_onnxruntime(path: Path, version: int | None) -> None:
    model = product()
    model.graph.name = "a graph"
    model.producer_name = "a test"
    model.doc_string = "a text"
    if version is not None:
        model.model_version = version
    onnx.helper.set_model_props(model, {"labels": "a,b"})
    onnx.save(model, path)
    for _ in range(2):
        session = onnxfold.InferenceSession(path)
        assert described(session) == described(ort.InferenceSession(path))


PROGRAM = """
import json, sys
import numpy as np
import onnxfold
assert "onnxruntime" not in sys.modules
session = onnxfold.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
x = np.ones((2, 128), np.float32)
(y,) = session.run(None, {"x": x})
print(json.dumps({"sum": float(y.sum()), "optimized": "onnxfold.api.optimize" in sys.modules}))
"""


def start(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, object]:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return json.loads(output)


def test_second_process_opens_the_cached_model(path: Path, cache: Path) -> None:
    os.utime(path, (0, 0))
    assert result(start(path))["optimized"]
    made = state(cache)
    (entry,) = entries(cache)
    kept = onnx.load(entry / "model.onnx")
    assert "Transpose" not in {node.op_type for node in kept.graph.node}
    assert not result(start(path))["optimized"]
    assert made == state(cache)


def test_concurrent_processes_create_one_entry(path: Path, cache: Path) -> None:
    results = [result(process) for process in [start(path) for _ in range(4)]]
    assert len({found["sum"] for found in results}) == 1
    assert len(entries(cache)) == 1
    assert not result(start(path))["optimized"]
    assert not [name for name in os.listdir(cache) if name.startswith(".")]


def test_files_of_equal_content_share_an_entry(path: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "copy.onnx").write_bytes(path.read_bytes())
    onnxfold.InferenceSession(path)
    made = state(cache)
    assert close(onnxfold.InferenceSession(str(tmp_path / "copy.onnx")))
    assert len(entries(cache)) == 1
    assert made.items() <= state(cache).items()
    for _ in range(2):
        assert close(onnxfold.InferenceSession(path.read_bytes()))
    assert len(entries(cache)) == 2


def test_replaced_model_is_optimized_again(path: Path) -> None:
    for seed in (0, 1, 2):
        onnx.save(product(seed), path)
        os.utime(path, (0, 0))
        assert close(onnxfold.InferenceSession(path), seed)
        assert close(onnxfold.InferenceSession(path), seed)


def test_changed_external_data_is_detected(tmp_path: Path, cache: Path) -> None:
    model = tmp_path / "m.onnx"
    data = tmp_path / "m.data"
    onnx.save(product(0, external="m.data"), model)
    assert close(onnxfold.InferenceSession(model))
    before = data.stat()
    with open(data, "r+b") as file:
        file.write(floats(128, 128, seed=1).tobytes())
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert data.stat().st_size == before.st_size
    assert close(onnxfold.InferenceSession(model), 1)
    assert len(entries(cache)) == 2
    data.unlink()
    with pytest.raises(Exception) as theirs:
        ort.InferenceSession(model, providers=CPU)
    with pytest.raises(type(theirs.value)):
        onnxfold.InferenceSession(model, providers=CPU)


def flip(entry: Path) -> None:
    """Change the bytes of the weights, but not the size and modification time of the file."""
    file = entry / "weights"
    status = file.stat()
    file.write_bytes(bytes(byte ^ 0x40 for byte in file.read_bytes()))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


DAMAGES = {
    "cut": lambda entry: [os.truncate(f, f.stat().st_size // 2) for f in entry.iterdir()],
    "flipped": flip,
    "lost": lambda entry: (entry / "weights").unlink(),
    "confused": lambda entry: (entry / "record.json").write_text("[]"),
    "empty": lambda entry: (entry / "model.onnx").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_replaced(path: Path, cache: Path, damage) -> None:
    onnxfold.InferenceSession(path)
    (entry,) = entries(cache)
    DAMAGES[damage](entry)
    damaged = state(cache)
    assert close(onnxfold.InferenceSession(path))
    made = state(cache)
    assert not made.items() & damaged.items()
    assert close(onnxfold.InferenceSession(path))
    assert made == state(cache)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"files": 3, "settled": true}', b"\xff"])
def test_damaged_links_are_replaced(path: Path, cache: Path, content: bytes) -> None:
    onnxfold.InferenceSession(path)
    (link,) = cache.glob("*.json")
    link.write_bytes(content)
    assert close(onnxfold.InferenceSession(path))
    assert link.read_bytes() != content


def test_cache_size_is_bounded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXFOLD_SESSION_CACHE_BYTES", "200000")
    for seed in range(5):
        onnx.save(product(seed), tmp_path / f"{seed}.onnx")
        assert close(onnxfold.InferenceSession(tmp_path / f"{seed}.onnx"), seed)
        size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
        assert size <= 200_000
    assert 1 < len(entries(cache)) < 4
    made = state(cache)
    assert close(onnxfold.InferenceSession(tmp_path / "4.onnx"), 4)
    assert made.items() <= state(cache).items()
    assert close(onnxfold.InferenceSession(tmp_path / "0.onnx"), 0)


def test_the_bound_counts_the_link_of_a_model(
    path: Path, tmp_path: Path, cache, monkeypatch
) -> None:
    def size() -> int:
        return sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())

    onnxfold.InferenceSession(path)
    bound = 2 * size() - 10
    monkeypatch.setenv("ONNXFOLD_SESSION_CACHE_BYTES", str(bound))
    onnx.save(product(1), tmp_path / "1.onnx")
    onnxfold.InferenceSession(tmp_path / "1.onnx")
    assert size() <= bound


@pytest.mark.parametrize("limit", ["0", "1000"])
def test_models_larger_than_the_bound_are_not_cached(
    path: Path, cache: Path, limit, monkeypatch
) -> None:
    monkeypatch.setenv("ONNXFOLD_SESSION_CACHE_BYTES", limit)
    assert close(onnxfold.InferenceSession(path))
    assert close(onnxfold.InferenceSession(path.read_bytes()))
    assert not cache.exists()


def test_models_that_grow_beyond_the_bound_are_not_cached(
    tmp_path: Path, cache, monkeypatch
) -> None:
    """onnxruntime folds the ConstantOfShape, so the model that it writes exceeds the bound."""
    text = """g (float[n, 128] x) => (float[n, 128] y) <int64[2] sizes = {128, 128}>
        { w = ConstantOfShape (sizes) y = MatMul(x, w) }"""
    path = saved(text, tmp_path / "m.onnx")
    os.utime(path, (0, 0))
    monkeypatch.setenv("ONNXFOLD_SESSION_CACHE_BYTES", "30000")
    first = result(start(path))
    assert first["optimized"]
    (entry,) = entries(cache)
    assert os.listdir(entry) == ["record.json"]
    assert result(start(path)) == {**first, "optimized": False}


@pytest.mark.parametrize("folder", ["{}/file", "relative"])
def test_unusable_folder_is_reported_once(
    folder, path: Path, tmp_path, monkeypatch, caplog
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "none")  # a relative HOME is not used
    monkeypatch.setenv("XDG_CACHE_HOME", folder.format(tmp_path))
    for _ in range(3):
        assert close(onnxfold.InferenceSession(path))
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert not {"none", "relative"}.intersection(os.listdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=128k", "tmpfs")


def test_sessions_ignore_a_full_disk(
    path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    (small_disk / "onnxfold").mkdir()
    (small_disk / "other").write_bytes(bytes(100_000))
    assert close(onnxfold.InferenceSession(path))
    assert sum(file.is_file() for file in (small_disk / "onnxfold").rglob("*")) == 0


def test_errors_equal_those_of_onnxruntime(tmp_path: Path, path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    for source in (tmp_path / "bad.onnx", tmp_path / "missing.onnx", tmp_path, b"nothing", 3):
        with pytest.raises(Exception) as theirs:
            ort.InferenceSession(source, providers=CPU)
        with pytest.raises(type(theirs.value)) as ours:
            onnxfold.InferenceSession(source, providers=CPU)
        assert str(ours.value) == str(theirs.value)
    sessions = ort.InferenceSession(path), onnxfold.InferenceSession(path)
    for feeds in ({}, {"y": X}, {"x": X.astype(np.float64)}, {"x": X[0]}):
        with pytest.raises(Exception) as theirs:
            sessions[0].run(None, feeds)
        with pytest.raises(type(theirs.value)) as ours:
            sessions[1].run(None, feeds)
        assert str(ours.value) == str(theirs.value)


def test_models_that_onnxfold_refuses_are_opened_unchanged(tmp_path: Path, cache: Path) -> None:
    model = product()
    model.graph.name = "name"
    content = model.SerializeToString().replace(b"name", b"\xffame")
    (tmp_path / "m.onnx").write_bytes(content)
    os.utime(tmp_path / "m.onnx", (0, 0))
    with pytest.raises(onnxfold.ModelError):
        onnxfold.optimize(tmp_path / "m.onnx")
    assert close(onnxfold.InferenceSession(tmp_path / "m.onnx"))
    assert not result(start(tmp_path / "m.onnx"))["optimized"]


def test_options_are_used_and_not_changed(path: Path, tmp_path: Path) -> None:
    for kept in (False, True):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_free_dimension_override_by_name("n", 3)
        zeros = ort.OrtValue.ortvalue_from_numpy(np.zeros((128, 128), np.float32))
        options.add_initializer("w", zeros)
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / f"profile {kept}")
        session = onnxfold.InferenceSession(path, options)
        assert session.get_inputs()[0].shape == [3, 128]
        assert close(session)
        assert session.end_profiling().startswith(options.profile_file_prefix)
        level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        assert options.graph_optimization_level == level
        assert session.get_session_options().graph_optimization_level == level
        assert session.get_session_options().intra_op_num_threads == 1
    assert onnxfold.InferenceSession(path).get_inputs()[0].shape == ["n", 128]


def test_external_initializers_in_the_options_replace_weights(tmp_path: Path) -> None:
    onnx.save(product(0, external="m.data"), tmp_path / "m.onnx")
    for _ in range(2):
        options = ort.SessionOptions()
        value = ort.OrtValue.ortvalue_from_numpy(floats(128, 128, seed=1))
        options.add_external_initializers(["w"], [value])
        assert close(onnxfold.InferenceSession(tmp_path / "m.onnx", options), 1)
        assert close(onnxfold.InferenceSession(tmp_path / "m.onnx"))


def _value(seed: int, *shape: int) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(floats(*shape, seed=seed))


def _initializer(name: str, *shape: int):
    """Return a function that adds an initializer to options and returns the value to keep alive."""

    def add(options: ort.SessionOptions) -> object:
        value = _value(5, *shape)
        options.add_initializer(name, value)
        return value

    return add


def _external(options: ort.SessionOptions) -> object:
    values = [_value(5, 8, 8)]
    options.add_external_initializers(["w"], values)
    return values


def _files(options: ort.SessionOptions) -> object:
    data = floats(8, 8, seed=5).tobytes() + floats(8, seed=6).tobytes()
    options.add_external_initializers_from_files_in_memory(["m.data"], [data], [len(data)])
    return data


def _unread_files(options: ort.SessionOptions) -> object:
    options.add_external_initializers_from_files_in_memory(["other"], [b"1234"], [4])
    return None


def _set(name: str, value: object):
    return lambda options: setattr(options, name, value)


def _entry(name: str, value: str = "1"):
    return lambda options: options.add_session_config_entry(name, value)


# Functions that set an option. A name in this table begins with the name of the option or entry.
OPTIONS = {
    "add_initializer of a weight": _initializer("w", 8, 8),
    "add_initializer of a constant result": _initializer("k", 8, 8),
    "add_initializer of the result of a Constant": _initializer("c", 8),
    "add_initializer of no value": _initializer("none", 8),
    "add_external_initializers": _external,
    "add_external_initializers_from_files_in_memory": _files,
    "add_external_initializers_from_files_in_memory of others": _unread_files,
    "add_free_dimension_override_by_name": lambda o: o.add_free_dimension_override_by_name("n", 3),
    "add_free_dimension_override_by_denotation": lambda o: (
        o.add_free_dimension_override_by_denotation("ROWS", 3)
    ),
    "add_provider": lambda o: o.add_provider("CPUExecutionProvider", {}),
    "add_provider_for_devices": lambda o: o.add_provider_for_devices(
        [d for d in ort.get_ep_devices() if d.ep_name in CPU][:1], {}
    ),
    "set_provider_selection_policy": lambda o: o.set_provider_selection_policy(
        ort.OrtExecutionProviderDevicePolicy.PREFER_CPU
    ),
    "set_provider_selection_policy_delegate": lambda o: o.set_provider_selection_policy_delegate(
        lambda devices, *_: [d for d in devices if d.ep_name in CPU][:1]
    ),
    "set_load_cancellation_flag": lambda o: o.set_load_cancellation_flag(True),
    "set_ep_context_data_read_func": lambda o: o.set_ep_context_data_read_func(print, 8),
    "clear_ep_context_data_read_func": lambda o: o.clear_ep_context_data_read_func(),
    "enable_cpu_mem_arena": _set("enable_cpu_mem_arena", False),
    "enable_mem_pattern": _set("enable_mem_pattern", False),
    "enable_mem_reuse": _set("enable_mem_reuse", False),
    "execution_mode": _set("execution_mode", ort.ExecutionMode.ORT_PARALLEL),
    "execution_order": _set("execution_order", ort.ExecutionOrder.PRIORITY_BASED),
    "graph_optimization_level": _set(
        "graph_optimization_level", ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    ),
    "inter_op_num_threads": _set("inter_op_num_threads", 2),
    "intra_op_num_threads": _set("intra_op_num_threads", 3),
    "log_severity_level": _set("log_severity_level", 4),
    "log_verbosity_level": _set("log_verbosity_level", 1),
    "logid": _set("logid", "id"),
    "use_deterministic_compute": _set("use_deterministic_compute", True),
    "use_per_session_threads": _set("use_per_session_threads", True),
    "add_session_config_entry": _entry("session.set_denormal_as_zero"),
    "add_session_config_entry of no known entry": _entry("session.no_such_entry"),
    "strict_shape_type_inference": _entry("session.strict_shape_type_inference"),
}
# Methods that only read, and options that other tests cover.
OTHERS = {"has_providers", "get_session_config_entry", "register_custom_ops_library"}
OTHERS |= {"enable_profiling", "profile_file_prefix", "optimized_model_filepath"}


def test_every_option_is_tested() -> None:
    names = {name for name in dir(ort.SessionOptions) if not name.startswith("_")}
    tested = {name.partition(" ")[0] for name in OPTIONS}
    assert names - OTHERS <= tested


def outcome(kind, path: Path, give) -> object:
    """Return the input shape and the results of a session with an option.

    If the session cannot be opened, return the class of the error.
    """
    options = ort.SessionOptions()
    alive = give(options)
    try:
        session = kind(path, options)
    except Exception as error:
        return type(error)
    results = session.run(None, {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)})
    del alive
    return [session.get_inputs()[0].shape, *results]


@pytest.mark.parametrize("start", ["first", "second"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_the_effect_of_onnxruntime(name, start, tmp_path: Path) -> None:
    model = parse(
        """g (float[n, 8] x) => (float[n, 8] y, float[n, 8] z) {
        c = Constant<value = float[8] {1, 2, 3, 4, 5, 6, 7, 8}> ()
        k = Exp(w) a = MatMul(x, k) b = MatMul(a, w) y = Add(b, c) z = Mul(y, v) }""",
        17,
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "ROWS"
    with_weights(model, w=floats(8, 8, seed=1), v=floats(8, seed=2))
    how = {"save_as_external_data": True, "location": "m.data", "size_threshold": 0}
    onnx.save(model, tmp_path / "m.onnx", **how)
    path = tmp_path / "m.onnx"
    if start == "second":
        onnxfold.InferenceSession(path)
        outcome(onnxfold.InferenceSession, path, OPTIONS[name])
    theirs = outcome(ort.InferenceSession, path, OPTIONS[name])
    ours = outcome(onnxfold.InferenceSession, path, OPTIONS[name])
    if isinstance(theirs, type):
        assert ours == theirs
        return
    assert ours[0] == theirs[0]
    for got, expected in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


# Entries that change how a session is opened or run, but not its results.
RUN_TIME = re.compile(
    r"""session\.(allow_released_opsets_only|collect_node_memory_stats_to_file
    |debug_layout_transformation|disable_cpu_ep_fallback|disable_model_compile
    |enable_cpu_mem_arena|enable_mem_pattern|enable_profiling|execution_mode
    |external_data_loader\..*|fail_on_suboptimal_compiled_model|force_spinning_stop
    |inter_op.*|intra_op.*|log_.*|moe.*|enable_moe.*|optimized_model_.*|prepack\.enable_parallel
    |record_ep_graph_assignment_info|resource_cuda_partitioning_settings
    |save_external_prepacked_constant_initializers|strict_workspace_verification
    |use_device_allocator_for_initializers|use_env_allocators
    |use_external_initializer_file_buffers_directly|use_memory_mapped_ort_model
    |use_ort_model_bytes_.*|use_per_session_threads)
    |ep\.context_.*|ep\.cuda.*""",
    re.VERBOSE,
)


def test_every_entry_of_options_is_known() -> None:
    """An entry that changes how onnxruntime optimizes a model must be part of the cache key."""
    library = Path(onnxruntime_pybind11_state.__file__).read_bytes()
    pattern = rb"\0((?:session|optimization|mlas|ep)\.[a-z0-9_.]*[a-z0-9_])(?=\0)"
    names = {name.decode() for name in re.findall(pattern, library)}
    assert len(names) > 50
    unknown = names - {*DECIDING, *kept_models.FOREIGN}
    assert not [name for name in sorted(unknown) if not RUN_TIME.fullmatch(name)]


def test_unknown_keywords(path: Path) -> None:
    with pytest.raises(TypeError, match="argument 'levle'; did you mean 'level'"):
        onnxfold.InferenceSession(path, levle=2)
    with pytest.raises(TypeError, match="argument 'runtime_constant'; did you mean"):
        onnxfold.InferenceSession(path, runtime_constant=["x"])
    for name, value in {"enable_fallback": 0, "read_config_from_model": 0}.items():
        assert close(onnxfold.InferenceSession(path, **{name: value}))
    assert close(onnxfold.InferenceSession(path, disabled_optimizers=["ConstantFolding"]))


def test_options_that_affect_the_optimized_model_are_in_the_key(path: Path, cache: Path) -> None:
    levels = ort.GraphOptimizationLevel
    for count, level in enumerate((levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_ALL), 1):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        assert close(onnxfold.InferenceSession(path, options))
        assert len(entries(cache)) == count
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    assert close(onnxfold.InferenceSession(path, options))
    assert close(onnxfold.InferenceSession(path, level=2, target="onnxruntime"))
    assert len(entries(cache)) == 4
    with pytest.raises(onnxfold.UsageError):
        onnxfold.InferenceSession(path, level=7)


def test_models_with_other_files_are_opened_unchanged(path: Path, tmp_path: Path, cache) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "made.ort")
    assert close(onnxfold.InferenceSession(path, options))
    assert close(onnxfold.InferenceSession(tmp_path / "made.ort"))
    assert close(onnxfold.InferenceSession((tmp_path / "made.ort").read_bytes()))
    assert close(onnxfold.InferenceSession(path, disabled_optimizers=["ConstantFolding"]))
    onnx.save(product(0, external="there.data"), tmp_path / "there.onnx")
    content = (tmp_path / "there.onnx").read_bytes()
    options = ort.SessionOptions()
    folder = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(folder, str(tmp_path))
    assert close(onnxfold.InferenceSession(content, options))


def test_other_providers(path: Path, cache: Path) -> None:
    """If a provider may compile nodes, the cached model has no optimizations of onnxruntime."""
    options = ort.SessionOptions()
    (device,) = [d for d in ort.get_ep_devices() if d.ep_name in CPU][:1]
    options.add_provider_for_devices([device], {})
    for _ in range(2):
        assert close(onnxfold.InferenceSession(path, options))
    (entry,) = entries(cache)
    kept = onnx.load(entry / "model.onnx")
    assert [node.op_type for node in kept.graph.node] == ["MatMul", "Add"]
    session = onnxfold.InferenceSession(path)
    session.set_providers(CPU)
    assert session.get_providers() == CPU and close(session)
    with pytest.raises(ValueError):
        session.set_providers(CPU, [{}, {}])


def test_custom_ops_are_kept(tmp_path: Path, cache: Path) -> None:
    model = product()
    model.graph.node.append(onnx.helper.make_node("Mine", ["x"], ["z"], domain="my.own"))
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("z"))
    model.opset_import.append(onnx.helper.make_opsetid("my.own", 1))
    onnx.save(model, tmp_path / "m.onnx")
    for _ in range(2):
        with pytest.raises(Exception, match=r"my\.own"):
            onnxfold.InferenceSession(tmp_path / "m.onnx", providers=CPU)
    (entry,) = entries(cache)
    kept = onnx.load(entry / "model.onnx")
    assert [node.op_type for node in kept.graph.node] == ["MatMul", "Add", "Mine"]
