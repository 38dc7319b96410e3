"""Parse text files with models and with the expected results of rewriting them.

A case has a name after ``##`` and a graph in onnx's text format, in which ``*`` is an initializer
with random elements. Each line ``-> OPS; CLAUSES`` is one way to rewrite the graph. OPS are the
remaining op types with their numbers, including the nodes of functions and bodies. A number of one
is omitted, and ``?`` stands for any nodes. Clauses are:

    max_growth = 64        an option
    sizes = 2,3 1,1        sizes of the inputs' symbolic dims, in order, for two runs
    k = 0 2                values of an input: each run is repeated with each value
    weights: v w           names of the remaining initializers
    stays Neg: kept        an op type that is not folded, and a part of the reason
    not run                the results are not compared on onnxruntime
    not valid              onnx's checker does not check the result

Some tests define further clauses.
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
    """One way to rewrite a model, and the expected result.

    Attributes:
        text: The text after ``->``.
        ops: The numbers of the remaining nodes by op type; None for any nodes.
        values: The clauses with ``=``, by name.
        asserted: The clauses with ``:``, as pairs of the texts before and after the colon.
        words: All other clauses.
    """

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
        """Return the values of the clauses with ``=``, except the clauses named in `others`."""
        return {k: ast.literal_eval(v) for k, v in self.values.items() if k not in others}


def blocks(path: Path) -> dict[str, str]:
    """Return the texts of a file by their names, which follow ``##``."""
    split = path.read_text(encoding="utf-8").split("\n## ")[1:]
    return {name: text.strip() for name, _, text in (block.partition("\n") for block in split)}


TEXTS = blocks(ROOT / "tests" / "data" / "texts.txt")
"""The texts of the models of single tests, by name."""


def cases(path: Path) -> list[Any]:
    """Return parameters of a test: the text of the graph and a `Way`, for each way of each case."""
    found = []
    for name, text in blocks(path).items():
        graph, *ways = text.split("\n->")
        found += [pytest.param(graph, Way(way), id=f"{name} {way.strip()}") for way in ways]
    return found


def parse(text: str, opset: int = 21) -> onnx.ModelProto:
    """Return a model for the text of a graph and, optionally, of functions.

    The initializers that the text denotes by ``*`` have normally distributed elements times 4.
    """
    weights = {}
    for k, (kind, dims, name, _) in enumerate(_RANDOM.findall(text)):
        array = 4 * floats(*map(int, dims.split(",")), seed=k)
        weights[name] = array.astype(dtype_of(getattr(onnx.TensorProto, kind.upper())))
    text = re.sub(r"(, )?>", ">", _RANDOM.sub("", text)) if weights else text
    return with_weights(onnx.parser.parse_model(HEADER.format(opset=opset) + text), **weights)


def with_weights(model: onnx.ModelProto, **weights: Any) -> onnx.ModelProto:
    """Add initializers to a model, and return the same model.

    The initializers are arrays, numbers, ir tensors or TensorProtos.
    """
    for name, weight in weights.items():
        if not isinstance(weight, onnx.TensorProto | ir.TensorProtocol):
            weight = ir.Tensor(np.asarray(weight), name=name)
        if not isinstance(weight, onnx.TensorProto):
            weight = ir.serde.serialize_tensor(weight)
        weight.name = name
        model.graph.initializer.append(weight)
    return model


def external(name: str, dims: Sequence[int], **entries: str) -> onnx.TensorProto:
    """Return a float tensor that refers to external data."""
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
    """Return a model of nodes. The types of its outputs are inferred.

    Without `outputs`, the outputs of the model are the outputs of the last node.
    """
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
    """Yield the inputs of each run: for all sizes, all combinations of the values of the inputs.

    A clause names the values of an input. Without this clause, floats are random, integers are
    ones, and a boolean input has two values: all elements are True, or all are False.
    """
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
