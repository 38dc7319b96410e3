"""Extend mkdocs: pages from the whole repository, their links, and a page for each set of rules."""

from __future__ import annotations

import posixpath
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

from onnxfold.ops.aspects import Aspects, aspects
from onnxfold.rewrite import Rule, RuleSet
from onnxfold.rewrite.rule import builtin_rule_sets

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = "docs/pages/"
ELSEWHERE = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("docker/README.md", "examples/serve/README.md"),
)
"""Pages of the site that are not in `docs/pages`."""

LINK = re.compile(r"(?<=\]\()(?!\w+:)[^)#\s]+")
"""The path of a relative link."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of the rule sets to the navigation."""
    reference = next(entry["Reference"] for entry in config.nav or () if "Reference" in entry)
    section = next(entry["Rules"] for entry in reference if "Rules" in entry)
    section += [_page_of(rule_set) for rule_set in builtin_rule_sets()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/pages`."""
    for name in ELSEWHERE:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    for rule_set in builtin_rule_sets():
        files.append(File.generated(config, _page_of(rule_set), content=_catalogue(rule_set)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    uri = page.file.src_uri
    source = uri if uri in ELSEWHERE else PAGES + uri

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[0]))
        target = "rules.md" if target == "rules" else target.removeprefix(PAGES)
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    markdown = LINK.sub(on_site, markdown)
    if uri == "rules.md":
        rows = (f"| [{s.name}]({_page_of(s)}) | {s.doc} |\n" for s in builtin_rule_sets())
        markdown += "\n| set | subject |\n|---|---|\n" + "".join(rows)
    if uri == "ops.md":
        markdown += "\n| op | shape | NumPy | failures | cost | base |\n|---|---|---|---|---|---|\n"
        markdown += "".join(map(_row_of_op, aspects()))
    return markdown


def _row_of_op(op: Aspects) -> str:
    name = f"{op.domain}::{op.op_type}" if op.domain else op.op_type
    flags = (op.has_numpy_kernel, op.has_own_failures, op.has_own_cost, op.has_base)
    marks = " | ".join("yes" if flag else "" for flag in flags)
    return f"| `{name}` | {op.shape} | {marks} |\n"


def _page_of(rules: RuleSet) -> str:
    return f"rules/{rules.name}.md"


def _catalogue(rules: RuleSet) -> str:
    """Return the page of a set: its subject, its rules, and their patterns."""
    targets = sorted({rule.target for rule in rules if rule.target})
    only = [f"`--target {target}`" for target in targets]
    if rules.optional:
        only.append(f"`--enable {rules.name}`")
    condition = f" Used with {' or '.join(only)} only." if only else ""
    rows = "".join(
        f"| `{rule.name}` | {_cell(rule.doc)} | {_cell(_exactness(rule))} | {rule.seen_in} |\n"
        for rule in rules
    )
    patterns = "\n\n".join(map(_pattern, rules))
    return (
        f"# {rules.name}\n\n{rules.doc}{condition}\n\n"
        f"| rule | description | exact | seen in |\n|---|---|---|---|\n{rows}\n"
        f"## Patterns\n\n```text\n{patterns}\n```\n"
    )


def _exactness(rule: Rule) -> str:
    """Return whether a rule keeps every bit, and for which matches."""
    if isinstance(rule.inexact, bool):
        return "no" if rule.inexact else "yes"
    return f"unless `{rule.inexact!r}`"


def _pattern(rule: Rule) -> str:
    """Return the pattern, replacement and conditions of a rule as text."""
    first, last = rule.opset
    opset = f"opset {first} to {last}" if last else f"opset {first} and later"
    before, after, conditions = rule.texts
    lines = [f"{rule.name}  ({rule.location}, {opset})", f"  {before}", f"  >> {after}"]
    lines += [f"  where {condition}" for condition in conditions]
    return "\n".join(
        textwrap.fill(line, 84, subsequent_indent="     ", break_long_words=False) for line in lines
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
