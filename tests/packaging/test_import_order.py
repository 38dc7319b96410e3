"""Test the structure of the package: layers of imports, private names, and the list of packages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import python

ROOT = Path(__file__).parents[2]

# Layers from low to high. Parts of one layer do not import each other.
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
MOST_ENTRIES = 12  # modules and folders directly in the package

# Modules of a part, also from low to high.
ORDER_INSIDE = {
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
    """Return the part that contains a module: the longest matching name in `LAYERS`.

    If no name matches, return the first component of the module's name.
    """
    names = module.split(".")
    for count in range(len(names), 0, -1):
        name = ".".join(names[:count])
        if name in RANK:
            return name
    return names[0]


def files() -> Iterator[tuple[str, Path]]:
    """Yield the part and the path of every module in a part.

    The package's own ``__init__`` and ``__main__`` and the ``__init__`` of a folder of parts are in
    no part.

    Raises:
        AssertionError: The ``__init__`` of a folder of parts imports modules of the package.
    """
    for path in sorted((ROOT / "onnxfold").rglob("*.py")):
        names = path.relative_to(ROOT / "onnxfold").with_suffix("").parts
        module = ".".join(names).removesuffix(".__init__")
        if module in FOLDERS:
            assert not imported(path), f"{path}: a folder of parts must not import modules"
        elif module not in ("__init__", "__main__"):
            yield part_of(module), path
    for path in sorted((ROOT / "rules").glob("*.py")):
        yield "rules", path


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, without the package's name.

    Raises:
        AssertionError: The file has a relative import.
    """
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports must be absolute"
            module = node.module or ""
            is_folder = module == "onnxfold" or module.removeprefix("onnxfold.") in FOLDERS
            names = [f"{module}.{alias.name}" for alias in node.names] if is_folder else [module]
        else:
            continue
        modules |= {
            name.removeprefix("onnxfold.") for name in names if name.startswith("onnxfold.")
        }
    return modules


def test_every_part_is_in_a_layer() -> None:
    assert {part for part, _ in files()} == set(RANK)


@pytest.mark.parametrize("part", [name for names in LAYERS for name in names])
def test_parts_import_lower_layers_only(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports onnxfold.{other}"
        for owner, path in files()
        if owner == part
        for other in sorted({part_of(module) for module in imported(path)} - {part})
        if RANK.get(other, len(LAYERS)) >= RANK[part]
    ]
    assert not wrong, "\n".join(wrong)


def test_package_has_few_entries() -> None:
    folder = ROOT / "onnxfold"
    entries = {path.relative_to(folder).parts[0] for path in folder.rglob("*.py")}
    entries -= {"__init__.py", "__main__.py"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


@pytest.mark.parametrize(
    ("part", "name"), [(part, n) for part in ORDER_INSIDE for n in ORDER_INSIDE[part]]
)
def test_imports_inside_of_a_part_have_one_direction(part: str, name: str) -> None:
    folder = ROOT / "onnxfold" / part
    paths = [*folder.glob(f"{name}.py"), *folder.glob(f"{name}/**/*.py")]
    assert paths
    below = ORDER_INSIDE[part][: ORDER_INSIDE[part].index(name) + 1]
    wrong = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in paths
        for module in imported(path)
        if module.startswith(f"{part}.")
        if (other := module.split(".")[1]) not in below
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_only_one_module_imports_engines() -> None:
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


def test_private_names_of_onnx_ir_are_not_used() -> None:
    """The exceptions are `onnx_ir_private`, which contains the reasons, and `lazy_imports`."""
    private = re.compile(
        r"onnx_ir\._|from onnx_ir import _|[a-z]\._(uses|inputs|outputs|producer|graph|add_usage)\b"
    )
    uses = [
        f"{path.name}: {line}"
        for _, path in files()
        if path.stem not in ("onnx_ir_private", "lazy_imports")
        for line in path.read_text(encoding="utf-8").splitlines()
        if private.search(line.replace("self._", ""))
    ]
    assert not uses


PROGRAM = """
import sys

sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in f.__module__]
import onnxfold

assert onnxfold.__file__.startswith(sys.argv[1])
model = onnxfold.optimize("models/swin.onnx")
assert model.graph.num_nodes() < 200
"""


def test_rules_are_found_without_installation():
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
