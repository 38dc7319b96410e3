"""What mkdocs cannot do alone: pages that live elsewhere, and the catalogue of the rules."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

from onnxfold.rewrite import Rule, RuleSet
from onnxfold.rewrite.patterns import text_of
from onnxfold.rewrite.rule_set import builtin_rule_sets

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ELSEWHERE = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    "docker/README.md",
)
"""Pages from the top of the repository, whose links become those of the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that live elsewhere."""
    for name in ELSEWHERE:
        text = (ROOT / name).read_text(encoding="utf-8").replace("(docs/pages/", "(")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the catalogue into the page of the rules."""
    if page.file.src_uri != "rules.md":
        return markdown
    return markdown + "".join(_of_set(rule_set) for rule_set in builtin_rule_sets())


def _of_set(rules: RuleSet) -> str:
    """A section: what the set is for, its rules, and their patterns folded away."""
    targets = sorted({rule.target for rule in rules if rule.target})
    only = [f"`--target {target}`" for target in targets]
    if rules.optional:
        only.append(f"`--enable {rules.name}`")
    asked = f" Used with {' or '.join(only)} only." if only else ""
    rows = "".join(
        f"| `{rule.name}` | {_cell(rule.doc)} | {_cell(_exactness(rule))} | {rule.seen_in} |\n"
        for rule in rules
    )
    patterns = "\n\n".join(map(_pattern, rules))
    return (
        f"\n\n## {rules.name}\n\n{rules.doc}{asked}\n\n"
        f"| rule | what it says | exact | seen in |\n|---|---|---|---|\n{rows}\n"
        f'??? note "Before and after"\n\n' + textwrap.indent(f"```text\n{patterns}\n```\n", "    ")
    )


def _exactness(rule: Rule) -> str:
    """Whether it keeps every bit, and for which matches."""
    if isinstance(rule.inexact, bool):
        return "no" if rule.inexact else "yes"
    return f"unless `{text_of(rule.inexact)}`"


def _pattern(rule: Rule) -> str:
    """The rule as its objects print: the pattern, the replacement, the condition."""
    first, last = rule.opset
    opset = f"opset {first} to {last}" if last else f"opset {first} and later"
    pair = rule.pair
    before, after = (", ".join(map(repr, side)) for side in (pair.patterns, pair.replacements))
    lines = [f"{rule.name}  ({rule.place}, {opset})", f"  {before}"]
    lines.append(f"  >> {after}")
    lines += [f"  where {text_of(condition)}" for condition in rule.where]
    return "\n".join(
        textwrap.fill(line, 84, subsequent_indent="     ", break_long_words=False) for line in lines
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
