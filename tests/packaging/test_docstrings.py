"""Docstrings of functions that return something say so in the imperative."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_IMPERATIVE = {"The", "A", "An", "What", "Whether", "Why", "How", "Everybody", "Somebody"}
DESCRIBED_BY = {
    "property",
    "fact",
    "cached_property",
    "setter",
    "contextmanager",
    "command",
    "group",
}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function that returns a value, with its place; kernels describe the result."""
    for path in sorted([*(ROOT / "onnxfold").rglob("*.py"), *(ROOT / "rules").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                names = {n for d in node.decorator_list for n in _names(d)}
                nothing = ast.unparse(node.returns) in ("None", "Never", "NoReturn")
                if not nothing and not names & {*DESCRIBED_BY, "kernel", "shape_of"}:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def _names(decorator: ast.expr) -> set[str]:
    nodes = list(ast.walk(decorator))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_docstrings_are_imperative():
    wrong = []
    for place, node in functions():
        words = (ast.get_docstring(node) or "").split()
        if words and words[0] in NOT_IMPERATIVE:
            wrong.append(f"{place}: {' '.join(words[:8])}")
    assert not wrong, "\n".join(wrong)


def test_there_are_many():
    assert sum(ast.get_docstring(node) is not None for _, node in functions()) > 800
