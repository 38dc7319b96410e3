"""Imports point one way: what is below knows nothing of what is above."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import python

ROOT = Path(__file__).parents[2]

# From the bottom up; those of one line do not know each other.
LAYERS = (
    ("onnx_ir_private",),
    ("cpu_family", "errors", "forks", "lazy_imports", "graphs", "memory", "arrays", "parallel"),
    ("process_state",),
    ("files", "onnxruntime_sessions", "signatures", "tables", "user_files"),
    ("adapter_files", "file_contents", "isolated", "user_caches"),
    ("evaluation",),
    ("storage",),
    ("symbolic",),
    ("ops",),
    ("pool",),
    ("kernels",),
    ("editing",),
    ("analysis",),
    ("dump",),
    ("rewrite",),
    ("rules", "comparison"),
    ("targets",),
    ("options",),
    ("passes",),
    ("runtime", "forecast", "shape_inference"),
    ("bench",),
    ("report",),
    ("testing",),
    ("api",),
    ("batches", "drop_in", "inference_session", "reduction", "tuning"),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# What is in some of the rooms, likewise.
INSIDE = {
    "runtime": (
        *("bundles", "splitting", "backends", "split_model"),
        *("adapter_matching", "sessions"),
    ),
    "rewrite": (
        *("conditions", "matched", "patterns", "rule", "matcher", "build"),
        *("vocabulary", "apply", "driver"),
    ),
}


def files() -> Iterator[tuple[str, Path]]:
    """Every module of the package with the part of it that it belongs to."""
    for path in sorted((ROOT / "onnxfold").rglob("*.py")):
        part = path.relative_to(ROOT / "onnxfold").parts[0].removesuffix(".py")
        if part not in ("__init__", "__main__"):
            yield part, path
    for path in sorted((ROOT / "rules").glob("*.py")):
        yield "rules", path


def imported(path: Path, package: str = "onnxfold") -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            names = [f"{package}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            names = [node.module or ""]
        else:
            continue
        inside = [name.removeprefix(f"{package}.") for name in names if name.startswith(package)]
        found |= {name.split(".")[0] for name in inside if name != package}
    return found


def test_every_part_has_its_place() -> None:
    assert {part for part, _ in files()} == set(RANK)


@pytest.mark.parametrize("part", [name for names in LAYERS for name in names])
def test_imports_point_down(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports onnxfold.{other}"
        for owner, path in files()
        if owner == part
        for other in sorted(imported(path) - {part})
        if RANK.get(other, len(LAYERS)) >= RANK[part]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("room", "name"), [(room, n) for room in INSIDE for n in INSIDE[room]])
def test_imports_inside_of_a_room_point_one_way(room: str, name: str) -> None:
    folder = ROOT / "onnxfold" / room
    paths = [*folder.glob(f"{name}.py"), *folder.glob(f"{name}/**/*.py")]
    assert paths
    below = INSIDE[room][: INSIDE[room].index(name) + 1]
    wrong = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in paths
        for other in imported(path, f"onnxfold.{room}")
        if other not in below
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_constants_are_computed_behind_one_door() -> None:
    engines = ROOT / "onnxfold" / "kernels" / "engines.py"
    for part in ("kernels", "pool", "editing", "passes", "rewrite"):
        for path in (ROOT / "onnxfold" / part).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "import onnxruntime" not in text, path
            assert "onnx.reference" not in text, path
            assert path == engines or "evaluate_isolated" not in text, path


def test_onnx_ir_is_used_by_its_public_api() -> None:
    """But for one module, which says why."""
    private = re.compile(
        r"onnx_ir\._|from onnx_ir import _|[a-z]\._(uses|inputs|outputs|producer|graph|add_usage)\b"
    )
    found = [
        f"{path.name}: {line}"
        for _, path in files()
        if path.stem not in ("onnx_ir_private", "lazy_imports")
        for line in path.read_text(encoding="utf-8").splitlines()
        if private.search(line.replace("self._", ""))
    ]
    assert not found


PROGRAM = """
import sys

sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in f.__module__]
import onnxfold

assert onnxfold.__file__.startswith(sys.argv[1])
model = onnxfold.optimize("models/swin.onnx")
assert model.graph.num_nodes() < 200
"""


def test_the_rules_are_found():
    python("-c", PROGRAM, ROOT, cwd=ROOT)


def test_pyproject_lists_every_package():
    tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = [init.parent.relative_to(ROOT) for init in ROOT.glob("onnxfold/**/__init__.py")]
    expected = {".".join(folder.parts) for folder in folders} | {"onnxfold.rules"}
    expected |= {
        ".".join(["onnxfold", *init.parent.relative_to(ROOT).parts])
        for init in ROOT.glob("rules/**/__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == expected
