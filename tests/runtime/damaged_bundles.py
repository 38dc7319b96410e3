"""Bundles with kernels, damaged in many ways: each must be refused, or leave the kernel unused.

``python tests/runtime/damaged_bundles.py BUNDLE --count 200`` damages copies of a bundle of the
decoder in ``runtime_models.py`` and prints what became of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
KINDS = (
    *("truncated", "emptied", "zeroed", "flipped", "swapped", "missing", "lengthened"),
    *("model edited", "weights edited", "manifest edited", "manifest flipped", "no digest"),
    *("other machine", "other version", "other format"),
)
_EDITS = (
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
    manifest = json.loads((folder / "manifest.json").read_text())
    kernels = [folder / k["file"] for k in manifest["kernels"] if k["file"]]
    if kind == "swapped":
        one, other = rng.choice(np.array(kernels), 2, replace=False)
        spare = one.with_suffix(".spare")
        one.rename(spare), other.rename(one), spare.rename(other)
        return f"{one.name} and {other.name}"
    if kind == "model edited":
        import onnx

        model = onnx.load(folder / "runtime_fold.onnx")
        node = next(n for n in model.graph.node if n.op_type in ("Add", "MatMul", "Mul", "Sub"))
        node.input[0], node.input[1] = node.input[1], node.input[0]
        onnx.save(model, folder / "runtime_fold.onnx")
        return f"{node.op_type} has its operands in another order"
    if kind == "weights edited":
        import onnx

        model = onnx.load(folder / "runtime_fold.onnx")
        tensor = model.graph.initializer[int(rng.integers(len(model.graph.initializer)))]
        array = onnx.numpy_helper.to_array(tensor) * 2
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        onnx.save(model, folder / "runtime_fold.onnx")
        return tensor.name
    if kind == "manifest edited":
        *path, last, value = _EDITS[int(rng.integers(len(_EDITS)))]
        place = manifest
        for step in path:
            place = place[step]
        place[last] = value
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return str((*path, last, value))
    if kind == "no digest":
        del manifest["digest"]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return kind
    if kind.startswith("other"):
        if kind == "other format":
            manifest["format"] = 2
        for kernel in manifest["kernels"]:
            names = {"other machine": ("cpu", "machine"), "other version": ("iree", "flags")}
            for name in names.get(kind, ()):
                if name in kernel["key"]:
                    kernel["key"][name] = "z80"
        manifest = sealed(manifest) if kind == "other machine" else manifest
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return kind
    file = folder / "manifest.json"
    if kind != "manifest flipped":
        file = rng.choice(np.array([*kernels, *kernels, folder / "runtime_fold.onnx"]))
    content = bytearray(file.read_bytes())
    place = int(rng.integers(len(content)))
    if kind == "truncated":
        content = content[:place]
    elif kind == "emptied":
        content = bytearray()
    elif kind == "zeroed":
        content[place : place + 4096] = bytes(len(content[place : place + 4096]))
    elif kind == "lengthened":
        content += bytes(rng.integers(0, 256, 100, np.uint8))
    else:
        for k in rng.integers(0, len(content), 1 + int(rng.integers(8))):
            content[k] ^= 1 << int(rng.integers(8))
    file.unlink()
    if kind != "missing":
        file.write_bytes(content)
    return f"{file.name} at {place}"


def sealed(manifest: dict) -> dict:
    """A manifest with the digest that it would have been written with."""
    written = {name: value for name, value in manifest.items() if name != "digest"}
    text = json.dumps(written, sort_keys=True)
    return {**written, "digest": hashlib.sha256(text.encode()).hexdigest()}


def run(folder: Path) -> dict[str, object]:
    """What becomes of a bundle: the reason why it is refused, or who makes which tensors."""
    from runtime_models import decoder_feeds

    from onnxfold.errors import OnnxFoldError
    from onnxfold.runtime.sessions.cache import FoldCache
    from onnxfold.runtime.sessions.session import Session

    results = {}
    for backend in ("auto", "onnxruntime"):
        try:
            session = Session(folder, backend=backend, cache=FoldCache())
            results[backend] = session.run(None, decoder_feeds())[0]
            if backend == "auto":
                placements = [(p.backend, p.reason) for p in session.placements()]
        except OnnxFoldError as error:
            results[backend] = str(error)
        except Exception as error:  # onnxruntime raises many classes without a common base
            results[backend] = f"onnxruntime: {type(error).__name__}"
    got, want = results["auto"], results["onnxruntime"]
    if isinstance(got, str):
        return {"refused": got}
    if isinstance(want, str):
        return {"wrong": f"onnxruntime alone refuses it: {want}", "placements": placements}
    same = got.shape == want.shape and np.allclose(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)
    return {"placements": placements, **({} if same else {"wrong": "other results"})}


def verdict(found: dict[str, object]) -> str:
    """Refused, onnxruntime, kernels (what was damaged was not needed) or what must not be."""
    if "died" in found or "wrong" in found:
        return "died" if "died" in found else "wrong"
    if "refused" in found:
        return "refused"
    makers = {backend for backend, _ in found["placements"]}
    reasons = [reason for backend, reason in found["placements"] if backend == "onnxruntime"]
    if "onnxruntime" not in makers:
        return "unnoticed"
    return "onnxruntime" if all(reasons) else "without a reason"


def try_damages(bundle: Path, count: int, seed: int = 0) -> list[tuple[str, str, dict]]:
    """Damage copies of a bundle and run them, some in one process: kind, what was done, result."""
    rng = np.random.default_rng(seed)
    tried = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for k in range(count):
            folder = Path(scratch) / str(k)
            shutil.copytree(bundle, folder)
            kind = KINDS[k % len(KINDS)]
            tried.append((kind, damage(folder, kind, rng)))
            folders.append(folder)
        found: list[dict] = []
        while len(found) < count:
            batch = folders[len(found) : len(found) + 50]
            command = [sys.executable, __file__, "--run", *map(str, batch)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            found += [json.loads(line) for line in done.stdout.splitlines()]
            if done.returncode:  # the one that it was at ended the process
                found.append({"died": f"{done.returncode}: {done.stderr[-500:]}"})
    return [(*what, result) for what, result in zip(tried, found, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, nargs="*")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.run:
        for folder in arguments.bundle:
            print(json.dumps(run(folder)), flush=True)
        return
    results = try_damages(arguments.bundle[0], arguments.count, arguments.seed)
    for kind, what, found in results:
        if verdict(found) not in ("refused", "onnxruntime"):
            print(kind, what, found)
    for (kind, end), number in sorted(Counter((k, verdict(f)) for k, _, f in results).items()):
        print(f"{number:5} {kind}: {end}")


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    main()
