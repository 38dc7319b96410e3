"""Models in a short text form, with the expected effect of rules.

A model consists of inputs in parentheses, constants in ``<>``, and nodes in ONNX's text form::

    (float[N,3] x, bool m) <float[3] c = {1, 2, 3}> t = Add(x, c) y = Where(m, t, x); opset 18

A constant without a value has normally distributed elements, or positive elements with
``= positive``. If its elements are integers, they are random numbers from 0 to 8. A list with fewer
values than elements is repeated. The elements of an input are adversarial: NaN, infinities, signed
zeros, subnormals and the largest integers. An input can also have a value, or ``= normal`` for
normally distributed elements.

After the nodes, changes and settings follow, separated by ``;``. A declaration or a node replaces
the one with the same name, or is added. ``input float c`` turns a constant into an input, and
``<float c>`` an input into a constant. Nodes that the outputs do not need are removed. The settings
are:

- ``opset 18``: the opset, by default 17.
- ``outputs y, t``: the outputs, by default those of the last node.
- ``sizes N=1,2 M=3``: the sizes of dynamic dimensions to test.
- ``runtime a b``: the names of the runtime constants.
- ``times 2``: the number of applications of the rules, by default 1.
- ``~1e-5``: the rules are inexact and apply only at level 2. The number is the maximum error,
  relative to the largest element.

The ops that remain after the rules were applied follow after ``->``. ``...`` represents any other
ops. Nodes with constant results are not listed.

A model in ONNX's text form, ``<ir_version: 10, ...> g (float[N] x) => (...) {...}``, can replace
the inputs, constants and nodes.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx.printer import to_text

from onnxfold.analysis.constness import RECORD_KEY
from onnxfold.support.errors import UsageError, about
from onnxfold.support.forks import cached_property
from onnxfold.testing.running import Array, Instance, find_model_error

_DECLARATION = re.compile(r"(\w+)(?:\[([^\]]*)\])? (\w+)(?: = (.+))?", re.DOTALL)
_SETTING = re.compile(r"(opset|outputs|sizes|runtime|times|~)\s*(.*)", re.DOTALL)
_NUMBER = re.compile(r"[\d.]+(?:e-?\d+)?")
_NODE_END = re.compile(r"(?<=\))\s+(?=\w[\w, ]* = )")
_DOMAIN = re.compile(r"= ([\w.]+)\.\w+\s*[<(]")


@dataclass(frozen=True)
class Declaration:
    """An input or a constant."""

    dtype: str
    dims: tuple[str, ...]
    """Sizes, and names of dynamic dimensions."""
    name: str
    value: str = ""
    """The text of the elements, "normal" or "positive". If the text is empty, the elements of an
    input are adversarial, and those of a constant are normally distributed."""

    @staticmethod
    def of(text: str) -> Declaration:
        """Parse a declaration.

        Raises:
            UsageError: The text is not a declaration.
        """
        match = _DECLARATION.fullmatch(text)
        if match is None or match[1].upper() not in ir.DataType.__members__:
            raise UsageError(f"{text!r} is not a declaration such as float[N,3] x")
        dims = tuple(d.strip() for d in (match[2] or "").split(",") if d.strip())
        return Declaration(match[1], dims, match[3], match[4] or "")

    def __str__(self) -> str:
        dims = f"[{','.join(self.dims)}]" if self.dims else ""
        return f"{self.dtype}{dims} {self.name}" + f" = {self.value}" * bool(self.value)

    def array(self, sizes: dict[str, list[int]]) -> Array:
        """Return the elements. The name is the seed of random elements.

        Args:
            sizes: The sizes of dynamic dimensions to test, by name. The first one is used.

        Raises:
            UsageError: The dtype is string, or a dynamic dimension has no size.
        """
        dtype = ir.DataType[self.dtype.upper()].numpy()
        if dtype.kind == "O":
            raise UsageError(f"{self}: string constants are not supported; make it an input")
        for size in self.dims:
            if size not in sizes and not size.isdigit():
                remedy = f"write a number instead of {size}, or sizes {size}=2"
                raise UsageError(f"{self}: elements need sizes; {remedy}")
        shape = [sizes[d][0] if d in sizes else int(d) for d in self.dims]
        is_real = dtype.kind in "fV"
        if self.value.startswith("{"):
            text = self.value.replace("True", "1").replace("False", "0")
            values = re.findall(r"[^\s,]+", text.strip("{}"))
            are_integers = not is_real and all(n.lstrip("-").isdigit() for n in values)
            numbers = [int(n) if are_integers else float(n) for n in values]
            with np.errstate(all="ignore"):
                return np.resize(np.array(numbers), shape).astype(dtype)
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        if not is_real:
            return np.asarray(rng.integers(0, 9, shape)).astype(dtype)
        array = np.asarray(rng.standard_normal(shape))
        return np.asarray(np.abs(array) + 0.5 if self.value == "positive" else array).astype(dtype)


@dataclass(frozen=True)
class Example:
    """A model in the short form, with the expected effect of rules.

    The key of an input or constant is its name. The key of a node consists of the names of its
    outputs, separated by ``, ``. The key of a setting is its first word.
    """

    inputs: dict[str, Declaration] = field(default_factory=dict)
    constants: dict[str, Declaration] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    after: str = ""
    """The ops that remain after the rules were applied. Empty if they are not checked."""
    location: str = ""
    """The location of the text, or the text itself, and the changes that were applied to it."""

    @staticmethod
    def of(text: str) -> Example:
        """Parse an example in the short form or in ONNX's text form.

        Raises:
            UsageError: A declaration, a number or a model in ONNX's text form is not valid.
        """
        text = " ".join(text.split())
        if not text.startswith("<"):
            return Example().changed(text, text)
        model, _, changes = text.rpartition("}")
        return _example_of(_parsed(model + "}", text)).changed(changes, text)

    def changed(self, text: str, location: str = "") -> Example:
        """Return a copy of this example with changes.

        Args:
            text: The changes and settings, and perhaps the remaining ops after ``->``.
            location: The new location. By default, it is the current location with the changes.

        Raises:
            UsageError: A declaration or a number is not valid.
        """
        changes, arrow, after = text.partition("->")
        parts = (dict(self.inputs), dict(self.constants), dict(self.nodes), dict(self.settings))
        location = location or f"{self.location} with {text}".strip()
        example = Example(*parts, after.strip() if arrow else self.after, location)
        for part in filter(None, map(str.strip, changes.split(";"))):
            example._change(part)
        if "outputs" not in example.settings and example.nodes:
            example.settings["outputs"] = [*example.nodes][-1]
        return example

    def _change(self, part: str) -> None:
        setting = _SETTING.fullmatch(part)
        if setting is not None:
            self.settings[setting[1]] = setting[2]
            if setting[1] in ("opset", "times", "~") and not _NUMBER.fullmatch(setting[2]):
                raise UsageError(f"{part!r} requires a number")
            return
        is_moved = part.startswith(("input ", "<"))
        part = re.sub(r"^input (.+)", r"(\1)", part)
        for opening, closing, group, other in (
            ("(", ")", self.inputs, self.constants),
            ("<", ">", self.constants, self.inputs),
        ):
            if part.startswith(opening):
                declared, _, part = part[1:].partition(closing)
                for text in filter(str.strip, re.split(r",\s*(?![^\[{]*[\]}])", declared)):
                    declaration = Declaration.of(text.strip())
                    if is_moved:
                        other.pop(declaration.name, None)
                    group[declaration.name] = declaration
                part = part.strip()
        if _DECLARATION.fullmatch(part):
            declaration = Declaration.of(part)
            group = self.constants if declaration.name in self.constants else self.inputs
            group[declaration.name] = declaration
        elif part:
            for node in _NODE_END.split(part):
                self.nodes[node.split(" = ")[0]] = node

    def _nodes_in_order(self) -> list[str]:
        """Return the nodes that the outputs need, in topological order.

        Raises:
            UsageError: The model has no node, a name is unknown, or a value depends on itself.
        """
        producers = {name: key for key in self.nodes for name in key.split(", ")}
        seen = {*self.inputs, *self.constants, ""}
        ordered = list[str]()
        path: list[str] = []  # the nodes from an output to the visited node

        def visit(name: str) -> None:
            if name not in producers:
                raise UsageError(f"no value has the name {name!r}")
            text = self.nodes[producers[name]]
            seen.update(producers[name].split(", "))
            path.append(producers[name])
            for operand in re.findall(r"\w+", text.partition("(")[2]):
                if producers.get(operand) in path and "{" not in text:
                    raise UsageError(f"value {operand!r} depends on itself")
                if operand not in seen and (operand in producers or "{" not in text):
                    visit(operand)
            path.pop()
            ordered.append(text)

        if "outputs" not in self.settings:
            raise UsageError("the model has no nodes; write, for example, y = Relu(x)")
        for name in self.settings["outputs"].split(", "):
            if name not in seen:
                visit(name)
        return ordered

    @cached_property
    def sizes(self) -> dict[str, list[int]]:
        """The sizes of dynamic dimensions from the settings."""
        pairs = [part.split("=") for part in self.settings.get("sizes", "").split()]
        return {name: [int(n) for n in numbers.split(",")] for name, numbers in pairs}

    @property
    def tolerance(self) -> float:
        """The maximum error relative to the largest element, or 0 for equal bits."""
        return float(self.settings.get("~", 0))

    @cached_property
    def instance(self) -> Instance:
        """The model, with sizes and inputs for its runs.

        Raises:
            UsageError: The text is not valid.
        """
        with about(self.location):
            try:
                return self._instance()
            except ValueError as error:
                raise UsageError(f"cannot read the model: {error}") from error

    def _instance(self) -> Instance:
        nodes = self._nodes_in_order()
        domains = dict.fromkeys(_DOMAIN.findall(" ".join(nodes)), "1")
        domains[""] = self.settings.get("opset", "17")
        imports = ", ".join(f'"{name}" : {version}' for name, version in domains.items())
        inputs = ", ".join(str(replace(each, value="")) for each in self.inputs.values())
        head = f"<ir_version: 10, opset_import: [{imports}]> g ({inputs})"
        body = f"({self.settings['outputs']}) {{ {' '.join(nodes)} }}"
        model = _parsed(f"{head} => {body}", body)
        for name, constant in self.constants.items():
            tensor = ir.Tensor(constant.array(self.sizes), name=name)
            model.graph.initializer.append(ir.serde.serialize_tensor(tensor))
        if runtime := self.settings.get("runtime"):
            helper.set_model_props(model, {RECORD_KEY: json.dumps(runtime.split())})
        if reason := find_model_error(model):
            raise UsageError(f"the model is not valid: {reason}")
        feeds = {
            n: declaration.array(self.sizes)
            for n, declaration in self.inputs.items()
            if declaration.value
        }
        return Instance(model, self.sizes, feeds)


def _parsed(text: str, source: str) -> onnx.ModelProto:
    """Parse a model in ONNX's text form.

    Args:
        text: The text.
        source: The part of the text that the user has written, for errors.

    Raises:
        UsageError: The text is not valid.
    """
    try:
        return onnx.parser.parse_model(text)
    except onnx.parser.ParseError as error:
        reason = error.args[0].decode().splitlines()[-1]
        raise UsageError(f"cannot read the model: {reason} {source}") from error


def _example_of(model: onnx.ModelProto) -> Example:
    """Convert a model to an example."""
    graph = model.graph
    inputs = {}
    for value in graph.input:
        kind = value.type.tensor_type
        dims = tuple(d.dim_param or str(d.dim_value) for d in kind.shape.dim)
        inputs[value.name] = Declaration(ir.DataType(kind.elem_type).name.lower(), dims, value.name)
    constants = {}
    for tensor in graph.initializer:
        array = ir.serde.deserialize_tensor(tensor).numpy()
        value = f"{{{', '.join(map(str, array.ravel().tolist()))}}}"
        dtype = ir.DataType(tensor.data_type).name.lower()
        declaration = Declaration(dtype, tuple(map(str, array.shape)), tensor.name, value)
        constants[tensor.name] = declaration
    nodes = {}
    for node in graph.node:
        node.ClearField("name")
        nodes[", ".join(node.output)] = to_text(node).strip()
    outputs = ", ".join(value.name for value in graph.output)
    versions = {opset.domain: str(opset.version) for opset in model.opset_import}
    return Example(inputs, constants, nodes, {"outputs": outputs, "opset": versions.get("", "17")})
