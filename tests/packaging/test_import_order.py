"""Imports point one way: what is below knows nothing of what is above."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import python

ROOT = Path(__file__).parents[2]

# From the bottom up; those of one line do not import each other.
LAYERS = (
    ("ir.onnx_ir_private", "support.system"),
    ("support.cpu_family", "support.errors", "support.forks", "support.lazy_imports"),
    ("ir.graphs", "support.arrays", "support.memory", "support.parallel"),
    ("support.process_state",),
    ("api.signatures", "support.files", "support.onnxruntime_sessions", "support.tables"),
    ("support.user_files",),
    ("runtime.adapter_files", "support.file_contents", "support.isolated", "support.user_caches"),
    ("fold.evaluation",),
    ("ir.storage",),
    ("ir.symbolic",),
    ("ops",),
    ("fold.pool",),
    ("fold.operation",),
    ("fold.inference",),
    ("fold.block_execution", "fold.wide"),
    ("fold.engines",),
    ("fold.evaluator",),
    ("ir.editing",),
    ("analysis",),
    ("tools.dump",),
    ("rewrite",),
    ("rules", "tools.comparison"),
    ("api.targets",),
    ("api.options",),
    ("passes",),
    ("runtime.bundles",),
    ("runtime.splitting",),
    ("runtime.backends",),
    ("runtime.split_model",),
    ("runtime.adapter_matching",),
    ("runtime.sessions",),
    ("tools.forecast", "tools.shape_inference"),
    ("tools.bench",),
    ("tools.report",),
    ("testing",),
    ("api.optimize",),
    ("api.drop_in", "runtime.kept_models"),
    ("runtime.kept_bundles",),
    ("runtime.held_inputs",),
    ("runtime.inference_session",),
    ("tools.batches", "tools.diagnostics", "tools.reduction", "tools.tuning"),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FOLDERS = {name.partition(".")[0] for name in RANK if "." in name}
MOST_ENTRIES = 12

# What is in some of the rooms, likewise.
INSIDE = {
    "rewrite": (
        "conditions",
        "matched",
        "patterns",
        "rule",
        "matcher",
        "build",
        "vocabulary",
        "apply",
        "driver",
    ),
}


def part_of(module: str) -> str:
    """The longest name in the list that a module is, or is in."""
    names = module.split(".")
    for count in range(len(names), 0, -1):
        name = ".".join(names[:count])
        if name in RANK:
            return name
    return names[0]


def files() -> Iterator[tuple[str, Path]]:
    """Every module of the package with the part of it that it belongs to."""
    for path in sorted((ROOT / "onnxfold").rglob("*.py")):
        names = path.relative_to(ROOT / "onnxfold").with_suffix("").parts
        module = ".".join(names).removesuffix(".__init__")
        if module in FOLDERS:
            assert not imported(path), f"{path}: a folder of parts imports nothing"
        elif module not in ("__init__", "__main__"):
            yield part_of(module), path
    for path in sorted((ROOT / "rules").glob("*.py")):
        yield "rules", path


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, without the package's name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            module = node.module or ""
            is_folder = module == "onnxfold" or module.removeprefix("onnxfold.") in FOLDERS
            names = [f"{module}.{alias.name}" for alias in node.names] if is_folder else [module]
        else:
            continue
        found |= {name.removeprefix("onnxfold.") for name in names if name.startswith("onnxfold.")}
    return found


def test_every_part_has_its_place() -> None:
    assert {part for part, _ in files()} == set(RANK)


@pytest.mark.parametrize("part", [name for names in LAYERS for name in names])
def test_imports_point_down(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports onnxfold.{other}"
        for owner, path in files()
        if owner == part
        for other in sorted({part_of(module) for module in imported(path)} - {part})
        if RANK.get(other, len(LAYERS)) >= RANK[part]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_has_few_entries() -> None:
    folder = ROOT / "onnxfold"
    entries = {path.relative_to(folder).parts[0] for path in folder.rglob("*.py")}
    entries -= {"__init__.py", "__main__.py"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


@pytest.mark.parametrize(("room", "name"), [(room, n) for room in INSIDE for n in INSIDE[room]])
def test_imports_inside_of_a_room_point_one_way(room: str, name: str) -> None:
    folder = ROOT / "onnxfold" / room
    paths = [*folder.glob(f"{name}.py"), *folder.glob(f"{name}/**/*.py")]
    assert paths
    below = INSIDE[room][: INSIDE[room].index(name) + 1]
    wrong = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in paths
        for module in imported(path)
        if module.startswith(f"{room}.")
        if (other := module.split(".")[1]) not in below
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_constants_are_computed_behind_one_door() -> None:
    engines = ROOT / "onnxfold" / "fold" / "engines.py"
    evaluation = ROOT / "onnxfold" / "fold" / "evaluation.py"
    for part in ("fold", "ir", "ops", "passes", "rewrite"):
        for path in (ROOT / "onnxfold" / part).rglob("*.py"):
            if path == evaluation:
                continue
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
