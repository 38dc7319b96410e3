"""Generate a random model and its feeds from a seed."""

import contextlib
import functools
import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import defs

from . import constants
from .builder import Builder, ir_version
from .call import Call
from .families import control, idioms, rows
from .scopes import Refused, Value, type_of
from .values import EIGHTS, PACKED

importlib.import_module(f"{__package__}.families.single_ops")

OPSETS = [*range(11, 27)]
_USUAL = (
    "Add",
    "Mul",
    "Sub",
    "Div",
    "Transpose",
    "Reshape",
    "Concat",
    "Slice",
    "Gather",
    "Cast",
    "Unsqueeze",
    "Squeeze",
    "MatMul",
    "Gemm",
    "Conv",
    "Where",
    "Expand",
    "Relu",
    "Shape",
    "Pow",
    "Split",
    "Pad",
    "Identity",
    "Softmax",
    "ReduceMean",
    "ReduceSum",
    "Clip",
)
_EXCLUDED = (
    "Constant",
    "Scan",
    "SequenceMap",
    "ImageDecoder",
    "MaxRoiPool",
    "DeformConv",
    "Upsample",
)


@dataclass
class Case:
    """A model with the data that a check requires.

    Attributes:
        seed: The seed of the model.
        model: The model.
        feeds: The feeds. The model may fail for some of them.
        random: The names of the outputs that depend on random numbers.
        variants: The variants to check instead of the requested ones, unless empty.
        done: The source of a mutant and the names of its mutations.
    """

    seed: int
    model: onnx.ModelProto
    feeds: list[dict[str, Any]]
    random: list[str] = field(default_factory=list)
    variants: tuple[str, ...] = ()
    done: list[str] = field(default_factory=list)


class Discarded(Exception):
    """The seed yields no model. The message contains the reason."""


@functools.cache
def op_types(opset: int) -> list[str]:
    usable = []
    for name in sorted({s.name for s in defs.get_all_schemas_with_history() if not s.domain}):
        with contextlib.suppress(defs.SchemaError):
            if not defs.get_schema(name, opset, "").deprecated and name not in _EXCLUDED:
                usable.append(name)
    return usable


def grow(b: Builder, count: int) -> None:
    """Add about ``count`` nodes to the current graph."""
    target = len(b.scope.nodes) + count
    for _ in range(count * 4):
        if len(b.scope.nodes) >= target:
            return
        style = b.rng.random()
        try:
            if style < 0.275:
                rows.row_of_rule(b)
            elif style < 0.33:
                makes = ["shape_arithmetic"] * 3 + ["sized_by_numbers"] * 2 + ["data_arithmetic"]
                getattr(idioms, b.choose(makes))(b)
            elif style < 0.35:
                idioms.op_between_transposes(b)
            elif style < 0.37:
                idioms.duplicate(b)
            elif style < 0.40:
                control.call_function(b)
            elif style < 0.44:
                Call(b, b.choose(["If", "Loop"])).make()
            else:
                usual = style < 0.65
                op_type = b.choose(_USUAL if usual else [*op_types(b.opset), *rows.op_rows()])
                if op_type in rows.op_rows() and b.chance(0.8):
                    rows.row_of_op(b, op_type)
                else:
                    Call(b, op_type).make()
        except Refused:
            continue


def generate(seed: int) -> Case:
    """Return the case of a seed.

    Raises:
        Discarded: The seed yields no node or no output.
    """
    rng = np.random.default_rng(seed)
    ort.set_seed(seed % 1000 + 1)
    opset = int(rng.choice(OPSETS)) if rng.random() < 0.7 else int(rng.choice([17, 18, 21]))
    if rng.random() < 0.04:
        opset = int(rng.choice([7, 8, 9, 10]))
    b = Builder(rng, opset)
    b.write_constant = constants.write
    for _ in range(b.number(0, 2)):
        with contextlib.suppress(Refused):
            b.pick(fresh=1.0)
    grow(b, b.number(3, 16))
    if not b.scope.nodes:
        raise Discarded("no node")
    try:
        outputs = choose_outputs(b)
    except Refused as error:
        raise Discarded(str(error)) from error
    graph = onnx.GraphProto(name=b.choose(["g", "main", ""]) or "g")
    graph.node.extend(b.scope.nodes)
    graph.initializer.extend(b.scope.initializers)
    graph.input.extend(b.inputs)
    graph.output.extend(declared(b, value) for value in outputs)
    model = b.model(graph)
    model.ir_version = ir_version(opset)
    if b.chance(0.3):
        with contextlib.suppress(onnx.shape_inference.InferenceError):
            model = onnx.shape_inference.infer_shapes(model)
    feeds = [b.feeds[k] for k in b.live]
    return Case(seed, model, feeds, [v.name for v in outputs if v.random])


def choose_outputs(b: Builder) -> list[Value]:
    """Return the values to declare as outputs: most values without consumers and some others.

    A packed tensor is replaced by a Cast to float32, and a sequence of packed tensors is omitted.

    Raises:
        Discarded: No value can be an output.
        Refused: onnxruntime rejects a Cast.
    """
    made = {o for n in b.scope.nodes for o in n.output if o}
    values = [v for v in b.scope.values if v.name in made]
    ends = [v for v in values if not v.used]
    others = [v for v in values if v.used]
    chosen = [v for v in ends if b.chance(0.8)] or ends[-1:]
    chosen += [v for v in others if b.chance(0.1)]
    if not chosen:
        chosen = values[-1:]
    if b.chance(0.04):
        chosen += [v for v in b.scope.values if v.tensor is not None][:1]
    b.rng.shuffle(chosen)  # type: ignore[arg-type]
    found: list[Value] = []
    for value in chosen:
        if value.elem in (*PACKED, *EIGHTS) and value.kind != "tensor":
            continue
        if value.elem in PACKED:
            value = b.node("Cast", [value], to=onnx.TensorProto.FLOAT)[0]
        found.append(value)
    if not found:
        raise Discarded("no output")
    return found


def declared(b: Builder, value: Value) -> onnx.ValueInfoProto:
    """Return the declaration of an output.

    The declaration of a tensor contains the rank and some symbols, but no sizes.
    """
    info = type_of(value, value.name)
    if value.kind != "tensor":
        return info
    for dim, sizes in zip(info.type.tensor_type.shape.dim, value.dims, strict=True):
        dim.ClearField("value")
        if sizes in b.symbols and b.chance(0.5):
            dim.dim_param = b.symbols[sizes]
    return info
