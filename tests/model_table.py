"""Tables of models and what becomes of them, in text files.

A case has a name (``##``), a graph in onnx's text format in which ``*`` stands for random elements,
and for each way to rewrite it a line ``-> OPS; CLAUSES``: the nodes that are left with their
numbers, functions and bodies included (``?``: any nodes). A clause is a word or has a value:

    max_growth = 64        an option
    sizes = 2,3 1,1        sizes of the inputs' symbolic dims, in order, for two runs
    k = 0 2                an input that has these values, one after the other
    weights: v w           names of the initializers that are left
    stays Neg: kept        a part of the reason for which a node stays
    not run                the results are not compared on onnxruntime
"""

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "models"
SWIN = MODELS / "swin.onnx"
HEADER = '<ir_version: 10, opset_import: ["" : {opset}, "local" : 1, "custom" : 1]>'
_RANDOM = re.compile(r"(\w+)\[([\d, ]+)\] (\w+) = \*(, )?")


@dataclass
class Way:
    """One way to rewrite a model, and what is asserted of the result."""

    text: str
    ops: dict[str, int] | None = None
    values: dict[str, str] = field(default_factory=dict)
    asserted: list[tuple[str, str]] = field(default_factory=list)
    words: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        ops, *clauses = (part.strip() for part in self.text.split(";"))
        if ops != "?":
            counted = (op.split() for op in ops.split(",") if op)
            self.ops = {op: int(*count or "1") for op, *count in counted}
        for clause in clauses:
            name, equals, value = clause.partition(" = ")
            if equals:
                self.values[name] = value
            elif ":" in clause:
                self.asserted.append((clause.split(":")[0], clause.split(":", 1)[1].strip()))
            else:
                self.words.add(clause)

    def options(self, *others: str) -> dict[str, Any]:
        """The values that are no inputs."""
        return {k: ast.literal_eval(v) for k, v in self.values.items() if k not in others}


def blocks(path: Path) -> dict[str, str]:
    """The texts of a file by the names behind ``##``."""
    split = path.read_text(encoding="utf-8").split("\n## ")[1:]
    return {name: text.strip() for name, _, text in (block.partition("\n") for block in split)}


TEXTS = blocks(ROOT / "tests" / "data" / "texts.txt")
"""Models of single tests."""


def cases(path: Path) -> list[Any]:
    """The parameters of a test: graph and way of each case."""
    found = []
    for name, text in blocks(path).items():
        graph, *ways = text.split("\n->")
        found += [pytest.param(graph, Way(way), id=f"{name} {way.strip()}") for way in ways]
    return found


def parse(text: str, opset: int = 21) -> onnx.ModelProto:
    """A model from the text of its graph (and functions)."""
    weights = {}
    for k, (kind, dims, name, _) in enumerate(_RANDOM.findall(text)):
        array = 4 * floats(*map(int, dims.split(",")), seed=k)
        weights[name] = array.astype(dtype_of(getattr(onnx.TensorProto, kind.upper())))
    text = re.sub(r"(, )?>", ">", _RANDOM.sub("", text)) if weights else text
    return with_weights(onnx.parser.parse_model(HEADER.format(opset=opset) + text), **weights)


def with_weights(model: onnx.ModelProto, **weights: Any) -> onnx.ModelProto:
    """The model with more initializers: arrays, numbers, ir tensors or TensorProtos by name."""
    for name, weight in weights.items():
        if not isinstance(weight, onnx.TensorProto | ir.TensorProtocol):
            weight = ir.Tensor(np.asarray(weight), name=name)
        if not isinstance(weight, onnx.TensorProto):
            weight = ir.serde.serialize_tensor(weight)
        weight.name = name
        model.graph.initializer.append(weight)
    return model


def external(name: str, dims: Sequence[int], **entries: str) -> onnx.TensorProto:
    """A float tensor whose data are said to be in a file."""
    tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def saved(text: str, path: Path, opset: int = 21, **weights: Any) -> Path:
    onnx.save(with_weights(parse(text, opset), **weights), path)
    return path


def graph(
    inputs: str, *nodes: str, outputs: str = "", opset: int = 17, **weights: Any
) -> onnx.ModelProto:
    """A model of nodes; its output is what the last one makes, if no others are named."""
    names = outputs or nodes[-1].split("=")[0].strip()
    made = parse(f"g ({inputs}) => ({names}) {{ {' '.join(nodes)} }}", opset)
    made = with_weights(made, **weights)
    for output, known in zip(
        made.graph.output, onnx.shape_inference.infer_shapes(made).graph.output, strict=True
    ):
        output.CopyFrom(known)
    return made


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dtype_of(elem: int) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(elem)


def feeds(model: onnx.ModelProto, way: Way) -> Iterator[dict[str, np.ndarray]]:
    """Inputs at all sizes: random numbers, integers that are 1, both values of a condition."""
    for sizes in way.values.get("sizes", "-").split():
        numbers = map(int, sizes.split(",") if sizes != "-" else ())
        known: dict[str, int] = {}
        several: dict[str, list[np.ndarray]] = {}
        for k, info in enumerate(model.graph.input):
            kind = info.type.tensor_type
            for d in kind.shape.dim:
                if d.dim_param and d.dim_param not in known:
                    known[d.dim_param] = next(numbers)
            shape = [known.get(d.dim_param, d.dim_value) for d in kind.shape.dim]
            dtype = dtype_of(kind.elem_type)
            if info.name in way.values:
                given = map(ast.literal_eval, way.values[info.name].split())
                several[info.name] = [np.resize(np.array(v, dtype), shape) for v in given]
            elif dtype.kind == "b":
                several[info.name] = [np.full(shape, c) for c in (True, False)]
            elif dtype.kind == "f":
                several[info.name] = [floats(*shape, seed=k + 9).astype(dtype)]
            else:
                several[info.name] = [np.ones(shape, dtype)]
        for chosen in itertools.product(*several.values()):
            yield dict(zip(several, chosen, strict=True))
