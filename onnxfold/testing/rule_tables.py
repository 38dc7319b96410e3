"""Tables of models on which rules are tested: ``my_rules.txt`` for ``my_rules.py``.

The first line of a block has the names of the tested rules, and optional settings and changes::

    matmul_add ~1e-5                      # applies at level 2 only, with this error
      for op: Add Sub                     # a block for each value of $op
      for m k: 1 3 | 2 5                  # | separates values with blanks or for several names
      (float[2,3] x) <float[3,4] w, float b = {0.5}> t = MatMul(x, w) y = $op(t, b); opset 13
        -> Gemm                           # the remaining ops
      + float[1,4] b | y = Add(b, t)      # changes after which the rules still apply
      - float[5,2,4] b; u = Relu(t); outputs y, u    # changes after which they do not apply

`onnxfold.testing.model_text` describes the models. Rows with changes refer to the last complete
model above. A row without remaining ops has those of this model. The settings and changes in the
first line apply to all models of the block. The name of a list of rules that ``each=`` has created
represents all rules of the list.
"""

from __future__ import annotations

import itertools
import os
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from onnxfold.rewrite import Rule
from onnxfold.support.errors import UsageError, about, suggestion
from onnxfold.testing.model_text import Example


class Case(NamedTuple):
    """A model of a table with the tested rules."""

    rules: tuple[Rule, ...]
    """The tested rules."""
    example: Example
    """The model."""
    is_refused: bool
    """Whether the rules must not apply to the model."""


def read_table(path: str | os.PathLike[str], rules: Iterable[Rule]) -> Iterator[Case]:
    """Yield the cases of a table.

    Args:
        path: The path of the table.
        rules: The rules that the table may name.

    Raises:
        UsageError: The table cannot be read or has an error. The message has the line of an error.
    """
    by_name = {rule.name: rule for rule in rules}
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError("there is no table of models for the rules", file=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the table cannot be read: {error}", file=path) from None
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in text.splitlines()]
    starts = [k for k, line in enumerate(lines) if line and not line[0].isspace()]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        rows: list[tuple[int, str]] = []
        for number, line in enumerate(map(str.strip, lines[start:end]), start + 1):
            if not rows or line.startswith(("(", "+ ", "- ", "for ")):
                rows.append((number, line))
            else:
                rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line}")
        with about(f"{path}:{start + 1}"):
            loops = [_loop(line) for _, line in rows if line.startswith("for ")]
        rows = [row for row in rows if not row[1].startswith("for ")]
        for iteration, values in enumerate(itertools.product(*loops), 1):
            substitutions = dict(itertools.chain.from_iterable(values))
            suffix = f"-{iteration}" if loops else ""
            substituted = [
                (f"{path}:{number}{suffix}", string.Template(line).safe_substitute(substitutions))
                for number, line in rows
            ]
            yield from _block(substituted, by_name)


def _loop(line: str) -> list[list[tuple[str, str]]]:
    """Return the names and values of each iteration of a line such as ``for a b: 1 2 | 3 4``.

    Raises:
        UsageError: An iteration does not have a value for each name.
    """
    head, _, tail = line.removeprefix("for ").partition(":")
    names = head.split()
    iterations = tail.split("|") if "|" in tail else tail.split()
    if len(names) == 1:
        return [[(names[0], value.strip())] for value in iterations]
    if any(len(values.split()) != len(names) for values in iterations):
        raise UsageError(f"each iteration requires {len(names)} values: {line!r}")
    return [list(zip(names, values.split(), strict=True)) for values in iterations]


def _block(rows: list[tuple[str, str]], by_name: Mapping[str, Rule]) -> Iterator[Case]:
    (location, head), *body = rows
    names, _, settings = head.partition(";")
    tolerance = "".join(re.findall(r"~\S+", names))
    with about(location):
        rules = tuple(
            rule for name in names.replace(tolerance, "").split() for rule in _find(name, by_name)
        )
        header = Example().changed(f"{tolerance};{settings}")
        previous = header
    for location, line in body:
        sign, text = (line[0], line[1:]) if line[0] in "+-" else ("", line)
        for part in filter(None, map(str.strip, re.split(r"\s\|\s", text))):
            is_complete = part.startswith("(")
            with about(location):
                example = (header if is_complete else previous).changed(part, location)
            if not example.after:
                example = replace(example, after=previous.after)
            if is_complete and not sign:
                previous = example
            yield Case(rules, example, is_refused=sign == "-")


def _find(name: str, by_name: Mapping[str, Rule]) -> list[Rule]:
    """Return the rule with a name, or the rules of the list with this name that ``each=`` created.

    Raises:
        UsageError: No rule and no list has this name.
    """
    created = [rule for each, rule in by_name.items() if each.removeprefix(f"{name}_").isdigit()]
    matches = [by_name[name]] if name in by_name else created
    if not matches:
        hint = suggestion(name, by_name) if name.isidentifier() else "; indent rows of a block"
        raise UsageError(f"there is no rule {name!r}{hint}")
    return matches
