"""Test that a damaged bundle is refused, or that onnxruntime replaces its kernels."""

import functools
import json
import operator
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from case_driver import Died, Worker
from runtime_models import assert_runs, bundle_of, decoder_feeds, run, sealed, session_on

KINDS = (
    "truncated",
    "emptied",
    "zeroed",
    "flipped",
    "swapped",
    "missing",
    "lengthened",
    "model edited",
    "weights edited",
    "manifest edited",
    "manifest flipped",
    "no digest",
    "other machine",
    "other version",
    "other format",
)
_EDITS: tuple[tuple[Any, ...], ...] = (
    ("kernels", 0, "function", "main"),
    ("kernels", 0, "inputs", ["mask"]),
    ("kernels", 0, "outputs", ["nothing"]),
    ("kernels", 0, "weights", []),
    ("kernels", 0, "hashes", {}),
    ("kernels", 0, "file", "manifest.json"),
    ("groups", 0, "constants", []),
    ("groups", 0, "outputs", []),
    ("hashes", "runtime_fold.onnx", "00"),
    ("cached", 0, "dtype", "int8"),
    ("entry_inputs", 0, "other"),
    ("runtime_constants", 0, "name", "other"),
)


def damage(folder: Path, kind: str, rng: np.random.Generator) -> str:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    kernels = [folder / k["file"] for k in manifest["kernels"] if k["file"]]
    if kind == "swapped":
        one, other = rng.choice(np.array(kernels), 2, replace=False)
        contents = one.read_bytes(), other.read_bytes()
        for file, content in zip((other, one), contents, strict=True):
            file.unlink()
            file.write_bytes(content)
        return f"{one.name} and {other.name}"
    if kind in ("model edited", "weights edited"):
        model = onnx.load(folder / "runtime_fold.onnx")
        if kind == "model edited":
            node = next(n for n in model.graph.node if n.op_type in ("Add", "MatMul", "Mul", "Sub"))
            node.input[:] = reversed(node.input)
        else:
            tensor = model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
            array = onnx.numpy_helper.to_array(tensor) * 2
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        onnx.save(model, folder / "runtime_fold.onnx")
        return kind
    if kind == "manifest edited":
        *places, last, value = _EDITS[int(rng.integers(len(_EDITS)))]
        functools.reduce(operator.getitem, places, manifest)[last] = value
        path.write_text(json.dumps(manifest))
        return f"{places} {last} = {value}"
    if kind == "no digest" or kind.startswith("other"):
        if kind == "no digest":
            del manifest["digest"]
        elif kind == "other format":
            manifest["format"] = 3
        else:
            changed = ("cpu", "machine") if kind == "other machine" else ("iree", "flags")
            for kernel in manifest["kernels"]:
                kernel["key"].update({name: "z80" for name in changed if name in kernel["key"]})
        path.write_text(json.dumps(sealed(manifest) if kind == "other machine" else manifest))
        return kind
    if kind != "manifest flipped":
        path = rng.choice(np.array([*kernels, *kernels, folder / "runtime_fold.onnx"]))
    content = bytearray(path.read_bytes())
    place = int(rng.integers(len(content)))
    if kind in ("truncated", "emptied"):
        del content[0 if kind == "emptied" else place :]
    elif kind == "zeroed":
        content[place : place + 4096] = bytes(len(content[place : place + 4096]))
    elif kind == "lengthened":
        content += bytes(rng.integers(0, 256, 100, np.uint8))
    else:
        for k in rng.integers(0, len(content), 1 + int(rng.integers(8))):
            content[k] ^= 1 << int(rng.integers(8))
    path.unlink()
    if kind != "missing":
        path.write_bytes(content)
    return f"{path.name} at {place}"


def verdict(phase: object, folder: str) -> str:
    """Run a bundle with `auto` and with onnxruntime, and return the verdict. `Worker` calls this.

    Returns:
        "refused" if `auto` raises an error, or "onnxruntime" if onnxruntime replaces at least one
        kernel and each replacement has a reason. Other texts describe a failure.
    """
    results = []
    placements = []
    for backend in ("auto", "onnxruntime"):
        try:
            got, found = run(folder, decoder_feeds(), backend=backend)
            results.append(got[0])
            placements = placements or found
        except Exception as error:  # onnxruntime raises many classes without a common base
            return "refused" if backend == "auto" else f"onnxruntime alone refuses it: {error}"
    if not np.allclose(*results, rtol=1e-4, atol=1e-4, equal_nan=True):
        return "other results"
    reasons = [place.reason for place in placements if place.backend == "onnxruntime"]
    if not reasons:
        return "unnoticed"
    return "onnxruntime" if all(reasons) else "without a reason"


def try_damages(bundle: Path, count: int) -> list[tuple[str, str, str]]:
    """Damage copies of a bundle, and run each copy in a child process.

    Returns:
        The kind, the description and the verdict of each damage. If the process died or the task
        raised an error, the verdict is the message.
    """
    rng = np.random.default_rng(0)
    tried = []
    worker = Worker(Path(__file__).stem)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            for k in range(count):
                folder = Path(scratch) / f"bundle{k}"
                shutil.copytree(bundle, folder)
                kind = KINDS[k % len(KINDS)]
                what = damage(folder, kind, rng)
                try:
                    found = worker.run("verdict", str(folder))
                except (Died, RuntimeError) as error:
                    found = str(error)
                tried.append((kind, what, found))
        finally:
            worker.stop()  # it may have mapped files of the folders, which are removed now
    return tried


@pytest.fixture
def bundle(compiling, decoder, tmp_path):
    made = bundle_of(decoder, tmp_path / "b", "states", "mask", backend=compiling)
    assert [p.backend for p in session_on(made).placements()] == [compiling] * 3
    return made.folder


def check(bundle, count) -> None:
    results = try_damages(bundle, count)
    assert len(results) == count
    assert [r for r in results if r[2] not in ("refused", "onnxruntime")] == []


def test_a_damaged_bundle_is_refused_or_run_by_onnxruntime(bundle):
    check(bundle, len(KINDS))


@pytest.mark.slow
def test_two_hundred_damaged_bundles(bundle):
    check(bundle, 200)


def test_onnxruntime_replaces_a_kernel_that_lacks_a_weight(compiled, decoder, tmp_path):
    """The manifest names a weight that runtime_fold does not have."""
    bundle = bundle_of(decoder, tmp_path / "b", "states")
    manifest = json.loads((bundle.folder / "manifest.json").read_text())
    (bundle.folder / "kernels").mkdir()
    (bundle.folder / "kernels" / "k.onnx").write_bytes(b"")
    names = bundle.manifest.components[0]
    manifest["kernels"] = [
        {
            "backend": "counting",
            "outputs": names,
            "inputs": ["states"],
            "weights": ["nowhere"],
            "file": "kernels/k.onnx",
        }
    ]
    (bundle.folder / "manifest.json").write_text(json.dumps(sealed(manifest)))
    placements = assert_runs(bundle.folder, decoder, decoder_feeds(), *["onnxruntime"] * 2, bound=0)
    reasons = {p.reason for p in placements if p.outputs == names}
    assert reasons == {"runtime_fold.onnx has no weight 'nowhere'"}
