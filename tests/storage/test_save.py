"""Test saving: streaming, all layouts, atomic replacement, and results that onnxruntime reads."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from folders import names_in
from onnx import TensorProto, helper
from storage_models import (
    Streamed,
    array,
    linear,
    nested,
    normal,
    parsed,
    run,
    streamed,
    tensor,
    weight,
    write,
)

from onnxfold.ir import storage
from onnxfold.ir.storage.load import external_locations
from onnxfold.support.errors import UsageError


@pytest.mark.parametrize("came", ["single", "external"])
@pytest.mark.parametrize("external_data", [None, False, True, "other.bin"])
@pytest.mark.parametrize("share", [False, True])
def test_layouts(tmp_path, came: str, external_data, share: bool) -> None:
    kwargs = {"save_as_external_data": True, "location": "in.bin", "size_threshold": 0}
    source = write(tmp_path / "in.onnx", linear(), **(kwargs if came == "external" else {}))
    expected = run(source)
    out = tmp_path / "out.onnx"
    if share and external_data is False:
        with pytest.raises(UsageError):
            storage.save(storage.load(source), out, external_data=False, share_weights=True)
        return
    report = storage.save(
        storage.load(source), out, external_data=external_data, share_weights=share
    )
    np.testing.assert_array_equal(run(out), expected)
    np.testing.assert_array_equal(weight(out), array(64, 64))
    is_external = share or bool(external_data) or (external_data is None and came == "external")
    assert storage.load(out).meta["onnxfold.external_data"] is is_external
    data_files = [tmp_path / name for name in external_locations(str(out))]
    if not is_external:
        assert data_files == [] and report.bytes_total == out.stat().st_size
        onnx.checker.check_model(str(out))
        if came == "single":
            assert out.read_bytes() == source.read_bytes()
    elif share:
        assert data_files == [tmp_path / ("in.bin" if came == "external" else "in.onnx")]
        assert report.bytes_shared == 64 * 64 * 4 and out.stat().st_size < 1000
    else:
        name = external_data if isinstance(external_data, str) else "out.onnx.data"
        assert data_files == [tmp_path / name]
        assert report.bytes_total == sum(os.stat(f).st_size for f in [out, *data_files])
    assert storage.model_bytes(storage.load(out)) == sum(
        os.stat(f).st_size for f in [out, *data_files]
    )


@pytest.mark.parametrize("external_data", [False, True])
def test_nested_models(tmp_path, external_data: bool) -> None:
    source = write(tmp_path / "in.onnx", nested())
    out = tmp_path / "out.onnx"
    storage.save(storage.load(source), out, external_data=external_data)
    feeds = {"cond": np.array(True)}
    results = [ort.InferenceSession(str(p)).run(None, feeds)[0] for p in (source, out)]
    np.testing.assert_array_equal(*results)
    if not external_data:
        assert normal(onnx.load(out)) == normal(onnx.load(source))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("external_data", [False, True])
def test_streamed_tensors(tmp_path, threads: int, external_data: bool) -> None:
    model = streamed()
    calls: list[tuple[int, int]] = []
    owner = threading.get_ident()

    def progress(done: int, total: int) -> None:
        assert threading.get_ident() == owner
        calls.append((done, total))

    s = model.graph.initializers["s"].const_value
    before = storage.to_proto(storage.from_proto(linear()))
    storage.save(
        model, tmp_path / "m.onnx", external_data=external_data, threads=threads, progress=progress
    )
    assert model.graph.initializers["s"].const_value is s
    assert s.released == 1 and s.reads == 4
    np.testing.assert_array_equal(weight(tmp_path / "m.onnx", "s"), s.expected())
    assert calls == sorted(calls) and calls[-1][0] == calls[-1][1]
    np.testing.assert_array_equal(run(tmp_path / "m.onnx").shape, (3, 64))
    model.graph.initializers.pop("s")
    assert storage.to_proto(model) == before, "the model was changed"


def test_a_tensor_used_twice_is_computed_once(tmp_path) -> None:
    for external_data in (False, True):
        model = streamed()
        s = model.graph.initializers["s"].const_value
        model.graph.initializers.add(ir.Value(name="s2", const_value=s))
        storage.save(model, tmp_path / "m.onnx", external_data=external_data)
        assert s.reads == 4 and s.released == 1
        for name in ("s", "s2"):
            np.testing.assert_array_equal(weight(tmp_path / "m.onnx", name), s.expected())
        size = storage.model_bytes(storage.load(tmp_path / "m.onnx"))
        assert (size < 5 << 20) == external_data, "with external data it is stored once"


def weights_only(arrays: dict[str, np.ndarray]) -> ir.Model:
    values = [ir.Value(name=n, const_value=ir.tensor(a, name=n)) for n, a in arrays.items()]
    graph = ir.Graph([], [], nodes=[], name="g", opset_imports={"": 17}, initializers=values)
    return ir.Model(graph, ir_version=10)


def test_tensors_in_memory(tmp_path) -> None:
    base = array(300, 500)
    arrays = {
        "plain": base,
        "transposed": base.T,
        "strided": base[::2, ::3],
        "broadcast": np.broadcast_to(base[:1], (40, 500)),
        "half": base.astype(ml_dtypes.bfloat16),
        "half_transposed": base.astype(ml_dtypes.bfloat16).T,
        "nibbles": (base.astype(np.int8) % 8).astype(ml_dtypes.int4),
        "flags": base > 0,
        "complex": base.astype(np.complex64),
        "empty": np.zeros((0, 5), np.float32),
        "scalar": np.float32(3).reshape(()),
    }
    model = weights_only(arrays)
    for external_data in (False, True):
        storage.save(model, tmp_path / "m.onnx", external_data=external_data)
        loaded = storage.load(tmp_path / "m.onnx")
        for name, expected in arrays.items():
            found = loaded.graph.initializers[name].const_value.numpy()
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found.astype(np.complex64), expected.astype(np.complex64))


def test_alignment_and_ties(tmp_path) -> None:
    proto = linear()
    proto.graph.initializer.extend([tensor("big", 600, 600), tensor("mid", 301), tensor("low", 3)])
    path = write(tmp_path / "in.onnx", proto)
    model = storage.load(path)
    model.graph.initializers.add(
        ir.Value(name="tied", const_value=model.graph.initializers["big"].const_value)
    )
    storage.save(model, tmp_path / "out.onnx", external_data=True)
    offsets = {}
    for t in onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer:
        if t.data_location == TensorProto.EXTERNAL:
            offsets[t.name] = int({e.key: e.value for e in t.external_data}["offset"])
    assert set(offsets) == {"w", "big", "mid", "tied"}
    assert offsets["big"] % 4096 == 0 and offsets["big"] == offsets["tied"]
    assert all(offset % 64 == 0 for offset in offsets.values())
    np.testing.assert_array_equal(run(tmp_path / "out.onnx"), run(path))
    # Shared tensors remain shared when the model is saved again.
    storage.save(storage.load(tmp_path / "out.onnx"), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx.data").stat().st_size == (
        tmp_path / "out.onnx.data"
    ).stat().st_size


def test_in_place(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", linear())
    expected = run(path)
    original = path.read_bytes()
    model = storage.load(path)
    for external_data in (None, True, True, None, False, False):
        storage.save(model, path, external_data=external_data)
        np.testing.assert_array_equal(run(path), expected)
        assert names_in(tmp_path) == ["m.onnx"] + (["m.onnx.data"] if external_data else [])
    # The first model still reads the replaced file.
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), array(64, 64))
    assert path.read_bytes() == original
    for _ in range(3):
        storage.save(storage.load(path), path, external_data=True)
        storage.save(storage.load(path), path)
        np.testing.assert_array_equal(run(path), expected)
        assert names_in(tmp_path) == ["m.onnx", "m.onnx.data"]
        assert os.stat(tmp_path / "m.onnx.data").st_nlink == 1


@pytest.mark.parametrize("links", [True, False])
def test_large_data_in_place(tmp_path, monkeypatch, links: bool) -> None:
    path = write(tmp_path / "m.onnx", linear(4200))
    storage.save(storage.load(path), path, external_data=True, fsync=False)
    expected = weight(path).copy()

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    storage.save(storage.load(path), path, fsync=False)
    np.testing.assert_array_equal(weight(path), expected)
    assert names_in(tmp_path) == ["m.onnx", "m.onnx.data"]
    assert os.stat(tmp_path / "m.onnx.data").st_nlink == 1


def test_copying_without_copy_file_range(tmp_path, monkeypatch) -> None:
    path = write(tmp_path / "m.onnx", linear(600))

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    storage.save(storage.load(path), tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").read_bytes() == path.read_bytes()


def test_sharing(tmp_path) -> None:
    (tmp_path / "sub").mkdir()
    source = write(tmp_path / "sub" / "in.onnx", linear())
    out = tmp_path / "out.onnx"
    model = storage.load(source)
    model.graph.initializers.add(ir.Value(name="s", const_value=Streamed(2, 1024)))
    report = storage.save(model, out, share_weights=True)
    assert external_locations(str(out)) == {"sub/in.onnx", "out.onnx.data"}
    np.testing.assert_array_equal(run(out), run(source))
    assert (report.bytes_shared, os.stat(f"{out}.data").st_size) == (64 * 64 * 4, 8192)
    # Weights outside of the folder of the target are copied.
    other = tmp_path / "other"
    other.mkdir()
    report = storage.save(storage.load(source), other / "out.onnx", share_weights=True)
    assert report.bytes_shared == 0 and os.stat(other / "out.onnx.data").st_size == 64 * 64 * 4
    # The target is replaced, so its weights cannot be shared.
    assert storage.save(storage.load(source), source, share_weights=True).bytes_shared == 0
    np.testing.assert_array_equal(run(source), run(other / "out.onnx"))


def test_sharing_in_place(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", linear())
    expected = run(path)
    storage.save(storage.load(path), path, external_data=True)
    data = (tmp_path / "m.onnx.data").read_bytes()
    model = storage.load(path)
    model.graph.initializers.add(ir.Value(name="s", const_value=Streamed(2, 1024)))
    with pytest.raises(UsageError, match="to be shared"):
        storage.save(model, path, share_weights=True, external_data="m.onnx.data")
    storage.save(model, path, share_weights=True)
    assert (tmp_path / "m.onnx.data").read_bytes() == data
    assert names_in(tmp_path) == ["m.onnx", "m.onnx.1.data", "m.onnx.data"]
    np.testing.assert_array_equal(run(path), expected)
    np.testing.assert_array_equal(weight(path, "s"), Streamed(2, 1024).expected())


def test_data_of_other_models_is_not_replaced(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", linear())
    storage.save(storage.load(path), path, external_data=True)
    storage.save(storage.load(path), tmp_path / "n.onnx", share_weights=True)
    with pytest.raises(UsageError, match=r"'n\.onnx'"):
        storage.save(storage.load(path), path)
    storage.save(storage.load(path), path, external_data=False)
    assert names_in(tmp_path) == ["m.onnx", "m.onnx.data", "n.onnx"]
    np.testing.assert_array_equal(run(path), run(tmp_path / "n.onnx"))


def test_foreign_data_is_not_removed(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", linear())
    (tmp_path / "m.onnx.data").write_bytes(b"of somebody else")
    storage.save(storage.load(path), path)
    assert (tmp_path / "m.onnx.data").read_bytes() == b"of somebody else"


def test_modes(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", linear())
    path.chmod(0o640)
    storage.save(storage.load(path), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    old = os.umask(0o027)
    try:
        storage.save(storage.load(path), tmp_path / "new.onnx")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new.onnx").stat().st_mode) == 0o640


def test_links(tmp_path) -> None:
    path = write(tmp_path / "m.onnx", linear())
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    storage.save(storage.load(path), tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink() and not path.is_symlink()
    away = tmp_path / "away"
    away.mkdir()
    (away / "link.onnx").symlink_to(path)
    storage.save(storage.load(path), away / "link.onnx")
    with pytest.raises(UsageError, match="symbolic link"):
        storage.save(storage.load(path), away / "link.onnx", external_data=True)
    (tmp_path / "dangling.onnx").symlink_to("born.onnx")
    storage.save(storage.load(path), tmp_path / "dangling.onnx")
    assert (tmp_path / "born.onnx").is_file()


def test_onnxruntime_reads_data_with_two_names(tmp_path) -> None:
    """While a model with external data is replaced, the data file has two names for a moment."""
    path = write(tmp_path / "m.onnx", linear())
    storage.save(storage.load(path), path, external_data=True)
    expected = run(path)
    os.link(tmp_path / "m.onnx.data", tmp_path / "again")
    np.testing.assert_array_equal(run(path), expected)


def test_two_gigabytes_need_external_data(tmp_path) -> None:
    data = np.broadcast_to(np.zeros(1, np.float32), (1 << 28,))  # 1 GiB that takes no memory
    model = weights_only({f"h{k}": data for k in range(3)})
    with pytest.raises(UsageError, match="2 GiB"):
        storage.save(model, tmp_path / "m.onnx", external_data=False)
    assert names_in(tmp_path) == []


def test_typed_fields_and_strings_are_kept(tmp_path) -> None:
    model = parsed('<ir_version: 9, opset_import: ["" : 17]> g () => (int64[3000] t) { }')
    model.graph.initializer.append(helper.make_tensor("t", TensorProto.INT64, [3000], [1] * 3000))
    model.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"b"]))
    source = write(tmp_path / "m.onnx", model)
    for external_data in (False, True):
        storage.save(storage.load(source), tmp_path / "o.onnx", external_data=external_data)
        assert (tmp_path / "o.onnx").read_bytes() == source.read_bytes()


def test_concurrent_saves_to_one_target(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    models = [storage.from_proto(linear(seed=i)) for i in range(4)]
    expected = []
    for model in models:
        storage.save(model, path)
        expected.append(run(path))

    def work(model: ir.Model) -> None:
        for _ in range(5):
            storage.save(model, path, external_data=True, fsync=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, models))
    found = run(path)
    assert any(np.array_equal(found, e) for e in expected)
    storage.save(storage.load(path), path, external_data=True)
    assert names_in(tmp_path) == ["m.onnx", "m.onnx.data"]
