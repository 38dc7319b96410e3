"""Run the code blocks of all pages of documentation, and check links, figures and diagrams."""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from code_blocks import Reader, blocks_of

from onnxfold.rewrite.rule import builtin_rule_sets

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
OTHER_PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "docker" / "README.md"]
PAGES = [README, *OTHER_PAGES, *sorted((ROOT / "docs" / "pages").rglob("*.md"))]
LONG = ("before-inference", "ci-gate", "compare", "many-models", "pipelines")
LONG += ("own-rules", "runtime-constants", "troubleshooting")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Return the working directory of a test, with the models and examples of the project."""
    for name in ("models", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def mark_slow_pages(page: Path) -> object:
    marks = pytest.mark.slow if page.stem in LONG else ()
    return pytest.param(page, marks=marks, id=page.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("page", list(map(mark_slow_pages, PAGES)))
def test_blocks_of_a_page(page, folder):
    reader = Reader()
    for block in blocks_of(page):
        reader.follow(block)


def test_shell_blocks_of_the_readme():
    blocks = [block.text for block in blocks_of(README) if block.language == "sh"]
    assert blocks == ["make demo\n", "make test\n"]


def test_wrong_blocks_are_found(folder):
    page = folder / "page.md"
    for text in (
        "```console\n$ onnxfold passes\nnothing\n```",
        "```python\nprint(1)\n```\n\n```text\n2\n```",
        "```text\nonnxfold model.onnx\n```",
        "```sh\nls\n```",
        "<!-- some words -->\n```sh\nls\n```",
    ):
        page.write_text(text)
        reader = Reader()
        with pytest.raises(AssertionError):
            for block in blocks_of(page):
                reader.follow(block)


@pytest.mark.parametrize("name", ["options.md", "coming-from.md"])
def test_options_in_tables_exist_on_the_command_line(name):
    from onnxfold.cli.command_line import cli

    known = set()
    for command in ("optimize", "compare", "inspect"):
        params = cli.commands[command].params
        known |= {opt for param in params for opt in param.opts + param.secondary_opts}
    text = (ROOT / "docs" / "pages" / name).read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    cells = [row[0] if name == "options.md" else row[-1] for row in rows]
    named = {flag for cell in cells for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", cell)}
    assert len(named) > 10
    assert named <= known


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    words = ("-m", "mkdocs", "build", "--strict", "--config-file", ROOT / "docs" / "mkdocs.yml")
    done = subprocess.run(
        [sys.executable, *words, "--site-dir", tmp_path / "site"],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "fp16" in (tmp_path / "site" / "search" / "search_index.json").read_text()
    for rule_set in builtin_rule_sets():
        page = tmp_path / "site" / "rules" / f"{rule_set.name}.html"
        catalogue = page.read_text(encoding="utf-8")
        for rule in rule_set:
            assert f"<code>{rule.name}</code>" in catalogue


BUILT = {".git", ".venv", "build", ".pytest_cache"}
ALL = sorted(p for p in ROOT.rglob("*.md") if not BUILT & set(p.relative_to(ROOT).parts))
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub creates from the headings of a page."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def dead_links(page: Path) -> list[str]:
    """Return the relative links of a page that have no target."""
    dead = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_are_valid(page):
    assert dead_links(page) == []
    assert "--8<--" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_no_placeholders(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"\b(?:OWNER|TODO|TBD|FIXME)\b|github\.com/[A-Z<]", text)


def test_dead_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text(
        "# A Title, here (1)\n```\n# no heading\n[x](gone.md)\n```\n"
    )
    page = tmp_path / "page.md"
    good = "[a](other.md#a-title-here-1) [b](https://example.com/gone.md) ![c](other.md)"
    page.write_text(f"{good} [d](gone.md) [e](other.md#no-heading) [f](#here)")
    assert dead_links(page) == ["gone.md", "other.md#no-heading", "#here"]


def test_examples_in_pages_are_equal_to_their_files():
    shown = [block for page in ALL for block in blocks_of(page) if block.title]
    examples = [block for block in shown if (block.title or "").startswith("examples/")]
    assert len(examples) >= 8
    for block in examples:
        assert block.text == (ROOT / str(block.title)).read_text(encoding="utf-8"), block.place


@pytest.mark.parametrize(
    ("page", "figures", "end"),
    [
        ("README.md", "production.txt", "\nmodel "),
        ("docs/pages/benchmarks.md", "peers.txt", "\n\n6 chains"),
        ("docs/pages/benchmarks.md", "sessions.txt", None),
    ],
)
def test_figures_in_pages_are_equal_to_their_files(page, figures, end):
    text = (ROOT / "docs" / "pages" / "benchmarks" / figures).read_text(encoding="utf-8")
    table = text.rstrip("\n") if end is None else text.partition(end)[0]
    assert table.count("\n") > 8
    assert table in (ROOT / page).read_text(encoding="utf-8")


DIAGRAMS = sorted((ROOT / "docs" / "pages" / "diagrams").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.stem)
def test_diagrams_are_accessible(path):
    root = ElementTree.parse(path).getroot()
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") and root.findtext(f"{SVG}desc")
    assert "prefers-color-scheme: dark" in str(root.findtext(f"{SVG}style"))
    width = float(str(root.get("width")))
    height = float(str(root.get("height")))
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width and 0 <= float(text.attrib["y"]) <= height
