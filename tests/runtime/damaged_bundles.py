"""Bundles with kernels, damaged in many ways: each must be refused, or leave the kernel unused.

``python tests/runtime/damaged_bundles.py BUNDLE --count 200`` damages copies of a bundle of the
decoder in ``runtime_models.py`` and prints what became of them.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import operator
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from tests.case_driver import Died, Worker  # noqa: E402

KINDS = (
    *("truncated", "emptied", "zeroed", "flipped", "swapped", "missing", "lengthened"),
    *("model edited", "weights edited", "manifest edited", "manifest flipped", "no digest"),
    *("other machine", "other version", "other format"),
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
    """Damage a bundle; what was done, in words."""
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
            manifest["format"] = 2
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


def sealed(manifest: dict) -> dict:
    """A manifest with the digest that it would have been written with."""
    written = {name: value for name, value in manifest.items() if name != "digest"}
    text = json.dumps(written, sort_keys=True)
    return {**written, "digest": hashlib.sha256(text.encode()).hexdigest()}


def verdict(phase: object, folder: str) -> str:
    """What becomes of a bundle: refused, onnxruntime (with a reason), or what must not be."""
    from runtime_models import decoder_feeds

    from onnxfold.runtime.sessions.cache import FoldCache
    from onnxfold.runtime.sessions.session import Session

    results = []
    for backend in ("auto", "onnxruntime"):
        try:
            session = Session(folder, backend=backend, cache=FoldCache())
            results.append(session.run(None, decoder_feeds())[0])
            if backend == "auto":
                placements = session.placements()
        except Exception as error:  # onnxruntime raises many classes without a common base
            return "refused" if backend == "auto" else f"onnxruntime alone refuses it: {error}"
    if not np.allclose(*results, rtol=1e-4, atol=1e-4, equal_nan=True):
        return "other results"
    reasons = [place.reason for place in placements if place.backend == "onnxruntime"]
    if not reasons:
        return "unnoticed"
    return "onnxruntime" if all(reasons) else "without a reason"


def try_damages(bundle: Path, count: int, seed: int = 0) -> list[tuple[str, str, str]]:
    """Damage copies of a bundle and run them in a child process: kind, what was done, verdict."""
    rng = np.random.default_rng(seed)
    tried = []
    worker = Worker(Path(__file__).stem)
    try:
        for k in range(count):
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch) / "bundle"
                shutil.copytree(bundle, folder)
                kind = KINDS[k % len(KINDS)]
                what = damage(folder, kind, rng)
                try:
                    found = worker.run("verdict", str(folder))
                except (Died, RuntimeError) as error:
                    found = str(error)
                tried.append((kind, what, found))
    finally:
        worker.stop()
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    results = try_damages(arguments.bundle, arguments.count, arguments.seed)
    for result in results:
        if result[2] not in ("refused", "onnxruntime"):
            print(*result)
    for (kind, end), number in sorted(Counter((k, v) for k, _, v in results).items()):
        print(f"{number:5} {kind}: {end}")


if __name__ == "__main__":
    main()
