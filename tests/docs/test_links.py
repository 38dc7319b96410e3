"""Links of Markdown files lead somewhere, and examples and figures are equal to their files."""

import re
from pathlib import Path

import pytest
from code_blocks import blocks_of

ROOT = Path(__file__).parents[2]
BUILT = {".git", ".venv", "build", ".pytest_cache"}
PAGES = sorted(p for p in ROOT.rglob("*.md") if not BUILT & set(p.relative_to(ROOT).parts))
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """Return the text of a page without fenced blocks."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes from the headings of a page."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def dead_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    dead = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if re.match(r"\w+:", link):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_somewhere(page):
    assert dead_links(page) == []
    assert "--8<--" not in page.read_text(encoding="utf-8")


def test_dead_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text(
        "# A Title, here (1)\n```\n# no heading\n[x](gone.md)\n```\n"
    )
    page = tmp_path / "page.md"
    good = "[a](other.md#a-title-here-1) [b](https://example.com/gone.md) ![c](other.md)"
    page.write_text(f"{good} [d](gone.md) [e](other.md#no-heading) [f](#here)")
    assert dead_links(page) == ["gone.md", "other.md#no-heading", "#here"]


def test_examples_in_pages_are_equal_to_their_files():
    shown = [block for page in PAGES for block in blocks_of(page) if block.title]
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
