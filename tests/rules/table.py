"""Tables of rules before and after, in onnx's text format: ``<rule set>.txt`` beside this file.

A block tests the rules that its first line names (the name of a list is all rules of it)::

    matmul_add ~1e-5                      # fires at level 2 only, with this tolerance
      for op: Add Sub                     # $op is each of these in turn; values with blanks, or for
      for m k: 1 3 | 2 5                  # several names, are separated by |
      (float[2,3] x) <float[3,4] w, float b = {0.5}> t = MatMul(x, w) y = $op(t, b); opset 13
        -> y = Gemm(x, w, b)              # the nodes after all rules fired
      + float[1,4] b | y = Add(b, t)      # models that differ from the one above, and match, too
      - float[5,2,4] b; u = Relu(t); outputs y, u    # models that do not match: they stay

What begins with ``(`` is a model of its own: inputs, constants in ``<>``, nodes. Without a value
a constant is normally distributed, or ``= positive``; a short list of values is repeated. The
elements of an input are hostile (see ``certify``), unless it has a value or is ``= normal``. A row
that does not say the nodes after has those of the row above.

A change replaces what has the same name, or adds it: ``input float b`` makes an input, and
``<float b>`` a constant of a name. Nodes that the outputs do not need are left out. Settings are
``opset 18`` (17 by default), ``outputs y, t`` (the last node's by default), ``sizes N=1,2``,
``runtime a b`` (runtime constants), ``times 2`` (how often the rules fire; once by default) and the
tolerance. Other models begin with those in the first line of the block.

In the nodes after, the name of a constant of the row is this constant, ``_`` any constant, and
``__`` any value: the nodes that compute it are not compared.
"""

from __future__ import annotations

import functools
import itertools
import re
import string
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from certify import Instance, certify, graph, refuse
from structure import assert_nodes

from onnxfold.rewrite import Rule
from onnxfold.rewrite.rule import builtin_rule_sets

FOLDER = Path(__file__).parent

_TYPE = r"(?:float|double|float16|bool|u?int(?:8|16|32|64))(?:\[[^\]]*\])?"
_DECLARATION = re.compile(rf"({_TYPE}) (\w+)(?: = (.+))?", re.DOTALL)
_SETTING = re.compile(r"(opset|outputs|sizes|runtime|times|~)\s*(.+)", re.DOTALL)
_NODE_END = re.compile(r"(?<=\))\s+(?=\w[\w, ]* = )")
_DTYPES = {"float": "float32", "double": "float64"}


@dataclass(frozen=True)
class Row:
    """One model of a block.

    Args:
        inputs: The declarations of the inputs, by name.
        constants: Those of the constants, by name.
        nodes: The nodes, by the names of their outputs.
        settings: What else was set, by its word.
        after: The nodes after the rules have fired.
    """

    inputs: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    after: str = ""

    def changed(self, text: str) -> Row:
        """Return this row with the changes in a text."""
        text, arrow, after = text.partition("->")
        row = Row(*(dict(d) for d in (self.inputs, self.constants, self.nodes, self.settings)))
        for part in filter(None, map(str.strip, text.split(";"))):
            row._change(part)
        if text.startswith("("):
            row.settings.setdefault("outputs", [*row.nodes][-1])
        return replace(row, after=after.strip() if arrow else self.after)

    def _change(self, part: str) -> None:
        if setting := _SETTING.fullmatch(part):
            self.settings[setting[1]] = setting[2]
            return
        part = re.sub(r"^input (.+)", r"(\1)", part)
        for opening, group in (("(", self.inputs), ("<", self.constants)):
            if part.startswith(opening):
                inner, part = _bracketed(part)
                for declaration in re.split(r",\s*(?![^\[{]*[\]}])", inner) if inner else ():
                    self._declare(declaration.strip(), group)
        if _DECLARATION.fullmatch(part):
            self._declare(part)
        elif part:
            for node in _NODE_END.split(part):
                self.nodes[node.split(" = ")[0]] = node

    def _declare(self, declaration: str, group: dict[str, str] | None = None) -> None:
        """Declare in the group of inputs or constants; if none is given, where the name is."""
        found = _DECLARATION.fullmatch(declaration)
        assert found, f"no declaration: {declaration}"
        old = self.constants if found[2] in self.constants else self.inputs
        assert group is not None or found[2] in old, f"{found[2]} is not declared yet"
        if group is not None and group is not old:
            old.pop(found[2], None)
        (old if group is None else group)[found[2]] = declaration

    def _needed_nodes(self, outputs: str) -> list[str]:
        """The nodes that outputs need, in their order, but none before what it takes."""
        made = {name: key for key in self.nodes for name in key.split(", ")}
        taken = {k: re.findall(r"\w+", text.split("(", 1)[1]) for k, text in self.nodes.items()}
        needed: dict[str, None] = {}
        stack = [made[name] for name in outputs.split(", ")]
        while stack:
            needed[stack[-1]] = None
            stack.extend({made[n] for n in taken[stack.pop()] if n in made} - needed.keys())
        left, ordered = [key for key in self.nodes if key in needed], list[str]()
        while left:
            missing = {name for key in left for name in key.split(", ")}
            ordered.append(next(key for key in left if not missing & {*taken[key]}))
            left.remove(ordered[-1])
        known = {"", *made, *self.inputs, *self.constants}
        unknown = {name for key in ordered for name in taken[key]} - known
        assert not unknown, f"nothing is called {unknown}"
        return [self.nodes[key] for key in ordered]

    def instance(self) -> Instance:
        """Return the model."""
        sizes = dict(part.split("=") for part in self.settings.get("sizes", "").split())
        sizes = {name: [int(n) for n in given.split(",")] for name, given in sizes.items()}
        feeds = {n: _array(d, sizes) for n, d in self.inputs.items() if " = " in d}
        outputs = self.settings["outputs"]
        nodes = self._needed_nodes(outputs)
        text = " ".join([*nodes, self.after])
        return graph(
            ", ".join(d.split(" = ")[0] for d in self.inputs.values()),
            *nodes,
            outputs=outputs,
            opset=int(self.settings.get("opset", 17)),
            domains={"com.microsoft": 1} if "com.microsoft" in text else {},
            sizes=sizes,
            feeds=feeds,
            runtime=self.settings.get("runtime", ""),
            **{name: _array(declaration, sizes) for name, declaration in self.constants.items()},
        )


@dataclass(frozen=True)
class Case:
    """A row, the rules that it is for, and whether they fire."""

    rules: tuple[Rule, ...]
    row: Row
    stays: bool
    place: str
    """Table and line."""

    def check(self) -> None:
        """Assert that the model becomes what the table says, and computes the same."""
        instance, settings = self.row.instance(), self.row.settings
        target = self.rules[0].target
        if self.stays:
            refuse(self.rules, instance, target=target)
            return
        certify(
            self.rules,
            instance,
            tolerance=float(settings.get("~", 0)),
            times=int(settings.get("times", 1)),
            target=target,
            check=functools.partial(assert_nodes, self.row.after, instance.model),
        )


def model(text: str) -> onnx.ModelProto:
    """Return the model that is written like a row of a table."""
    return Row().changed(text).instance().model


def cases(path: Path) -> Iterator[Case]:
    """Yield the cases of a table."""
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in path.read_text().splitlines()]
    starts = [k for k, line in enumerate(lines) if line and not line[0].isspace()]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        items: list[tuple[int, str]] = []
        for number, line in enumerate(map(str.strip, lines[start:end]), start + 1):
            if not items or line.startswith(("(", "+ ", "- ", "for ")):
                items.append((number, line))
            else:
                items[-1] = (items[-1][0], f"{items[-1][1]} {line}")
        loops = [_loop(text) for _, text in items if text.startswith("for ")]
        for turn, values in enumerate(itertools.product(*loops), 1):
            for number, case in _block(items, dict(itertools.chain(*values))):
                yield replace(case, place=f"{path.stem}:{number}" + f"-{turn}" * bool(loops))


def _loop(text: str) -> list[list[tuple[str, str]]]:
    """The names and values of a line ``for a b: 1 2 | 3 4``."""
    names, _, values = text.removeprefix("for ").partition(":")
    sets = values.split("|") if "|" in values else values.split()
    if len(names.split()) == 1:
        return [[(names.strip(), value.strip())] for value in sets]
    return [list(zip(names.split(), one.split(), strict=True)) for one in sets]


def _block(items: list[tuple[int, str]], values: dict[str, str]) -> Iterator[tuple[int, Case]]:
    rows = [item for item in items if not item[1].startswith("for ")]
    (_, head), *rest = [(n, string.Template(text).substitute(values)) for n, text in rows]
    names, _, settings = head.partition(";")
    tolerance = "".join(re.findall(r"~\S+", names))
    rules = tuple(itertools.chain(*map(_rules, names.replace(tolerance, "").split())))
    header = above = Row().changed(f"{tolerance};{settings}")
    for number, text in rest:
        sign, text = (text[0], text[1:]) if text[0] in "+-" else ("", text)
        for part in map(str.strip, re.split(r"\s\|\s", text)):
            row = (header if part[0] == "(" else above).changed(part)
            row = row if row.after else replace(row, after=above.after)
            above = row if part[0] == "(" and not sign else above
            yield number, Case(rules, row, sign == "-", "")


@functools.cache
def _rules(name: str) -> tuple[Rule, ...]:
    """The rule of a name, or the rules of the list of this name."""
    every = [rule for found in builtin_rule_sets() for rule in found]
    found = [rule for rule in every if re.fullmatch(rf"{name}(_\d+)?", rule.name)]
    return tuple([rule for rule in found if rule.name == name] or found)


def _bracketed(text: str) -> tuple[str, str]:
    """What is inside the bracket that a text begins with, and what is behind it."""
    end = text.index({"(": ")", "<": ">"}[text[0]])
    return text[1:end], text[end + 1 :].strip()


def _array(declaration: str, sizes: dict[str, list[int]]) -> np.ndarray:
    """The value of a declaration."""
    found = _DECLARATION.fullmatch(declaration)
    assert found, declaration
    name, _, dims = found[1].rstrip("]").partition("[")
    dtype = np.dtype(_DTYPES.get(name, name))
    shape = [sizes[d][0] if d in sizes else int(d) for d in dims.replace(",", " ").split()]
    value = found[3] or "normal"
    if value.startswith("{"):
        number = float if dtype.kind == "f" else int
        listed = [number(n) for n in value.strip("{}").split(",") if n.strip()]
        return np.resize(np.array(listed, dtype), shape)
    rng = np.random.default_rng(zlib.crc32(found[2].encode()))
    if dtype.kind != "f":
        return rng.integers(0, 9, shape).astype(dtype)
    array = rng.standard_normal(shape)
    return np.asarray(np.abs(array) + 0.5 if value == "positive" else array).astype(dtype)
