"""Changes of an example: dtypes, shapes, elements, attributes, operands, outputs and the opset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.fold.inference import schema_of
from onnxfold.testing.model_text import Example

_DTYPES = (
    "float",
    "double",
    "float16",
    "bfloat16",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
_WHOLE = (0, 1, -1, 2, 2**31 - 1, 2**53 + 1, 2**63 - 1, -(2**63), 1 - 2**63)
_REAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 1e-40, 3e38, np.inf, -np.inf, np.nan)
_MOST_ELEMENTS = 64
_ATTRIBUTE = re.compile(r"(\w+)=(\[[^\]]*\]|\"[^\"]*\"|[^\s,<>]+)")
_WORDS = ("VALID", "SAME_UPPER", "SAME_LOWER", "edge", "reflect", "nonsense")
_OPSETS = (7, 9, 10, 11, 12, 13, 14, 16, 18, 19, 20, 21, 22, 23, 24)


def changes(example: Example) -> Iterator[str]:
    """Yield changes in the form of a table.

    A changed model may be invalid, and a rule need not match it. If onnxruntime runs the model and
    the rule applies, the rule must preserve all bits.
    """
    for part in (_users, _constness, _dtypes, _shapes, _elements, _operands, _attributes):
        yield from part(example)
    opset = example.settings.get("opset", "17")
    yield from (f"opset {version}" for version in _OPSETS if str(version) != opset)


def _users(example: Example) -> Iterator[str]:
    outputs = example.settings["outputs"]
    for key in example.nodes:
        for name in key.split(", "):
            if name and name not in outputs.split(", "):
                yield f"outputs {outputs}, {name}"
                yield f"user = Identity({name}); outputs {outputs}, user"


def _constness(example: Example) -> Iterator[str]:
    runtime = example.settings.get("runtime", "")
    for each in example.constants.values():
        given = replace(each, value=each.value or "normal")
        yield f"input {given}"
        yield f"input {given}; runtime {runtime} {each.name}"
    for each in example.inputs.values():
        fixed = replace(each, dims=tuple(d if d.isdigit() else "2" for d in each.dims))
        yield f"<{fixed}>"
        yield f"runtime {' '.join(sorted({*runtime.split()} ^ {each.name}))}"


def _dtypes(example: Example) -> Iterator[str]:
    """Yield other dtypes, for all values of the same dtype together and for each value."""
    declared = [*example.inputs.values(), *example.constants.values()]
    for old in dict.fromkeys(each.dtype for each in declared):
        alike = [each for each in declared if each.dtype == old]
        groups = [alike, *([each] for each in alike if len(alike) > 1)]
        for group in groups:
            for new in _DTYPES:
                if new != old:
                    yield "; ".join(str(replace(each, dtype=new)) for each in group)


def _shapes(example: Example) -> Iterator[str]:
    """Yield other sizes for equal sizes in all shapes, and other shapes of each value."""
    declared = [*example.inputs.values(), *example.constants.values()]
    for old in dict.fromkeys(d for each in declared for d in each.dims):
        others = (str(int(old) + 1), "0", "1", "N") if old.isdigit() else ("1", "2", "3")
        for new in others:
            group = (each for each in declared if old in each.dims)
            yield "; ".join(
                str(replace(each, dims=tuple(new if d == old else d for d in each.dims)))
                for each in group
            )
    for each in declared:
        dims = each.dims
        count = len(each.dims)
        one = ("1",)
        zeros = ("0",) * count
        moved = (one + dims, dims + one, dims[1:], dims[:-1], dims[::-1])
        shapes: list[tuple[str, ...]] = [(), one * count, zeros, *moved]
        for k, size in enumerate(dims):
            for new in ("1", "N", "2", "3", str(int(size) + 1) if size.isdigit() else "4"):
                shapes.append((*dims[:k], new, *dims[k + 1 :]))
        for shape in dict.fromkeys(shapes):
            if shape != dims:
                yield str(replace(each, dims=shape))


def _elements(example: Example) -> Iterator[str]:
    for each in example.constants.values():
        array = each.array(example.sizes)
        if array.size > _MOST_ELEMENTS:
            continue
        listed = array.ravel().tolist()
        for special in _special(array.dtype):
            for elements in ([special], [*listed[:-1], special], [special, *listed[1:]]):
                yield str(replace(each, value=f"{{{', '.join(map(str, elements))}}}"))
        dims = (*each.dims[:-1], str(array.shape[-1] + 1)) if each.dims else ("2",)
        yield str(replace(each, dims=dims, value=f"{{{', '.join(map(str, listed))}}}"))


def _operands(example: Example) -> Iterator[str]:
    """Yield other constants as operands of single nodes. Other readers keep the old constant."""
    for text in example.nodes.values():
        head, _, operands = text.rpartition("(")
        for read in re.findall(r"\w+", operands):
            each = example.constants.get(read)
            if each is None or each.array(example.sizes).size != 1:
                continue
            changed = re.sub(rf"\b{read}\b", "other", operands)
            old = each.array(example.sizes).ravel()
            for number in dict.fromkeys([*(old + 1), *(old - 1), 0, 1, -1, 2]):
                made = replace(each, name="other", value=f"{{{number}}}")
                yield f"<{made}>; {head}({changed}"


def _special(dtype: np.dtype[Any]) -> Sequence[float]:
    if dtype == np.bool_:
        return (0, 1)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return [
            n for n in dict.fromkeys((*_WHOLE, info.min, info.max)) if info.min <= n <= info.max
        ]
    return _REAL


def _attributes(example: Example) -> Iterator[str]:
    """Yield other values of the attributes of each node, and removed and added attributes."""
    opset = int(example.settings.get("opset", 17))
    for key, text in example.nodes.items():
        head, _, operands = text.partition("(")
        op = head.partition("<")[0].rpartition("= ")[2].strip()
        given = dict(_ATTRIBUTE.findall(head))
        schema = schema_of(op, opset, "")
        defined = schema.attributes if schema else {}
        for name in {**given, **defined}:
            for value in _values(name, given.get(name, ""), defined.get(name)):
                changed = {k: v for k, v in {**given, name: value}.items() if v}
                listed = ", ".join(f"{k}={v}" for k, v in changed.items())
                if changed != given:
                    yield f"{key} = {op}{f'<{listed}>' if listed else ''}({operands}"


def _values(name: str, given: str, defined: onnx.defs.OpSchema.Attribute | None) -> Iterator[str]:
    """Yield values of an attribute in text form. "" removes the attribute."""
    kind = str(defined.type).rpartition(".")[2] if defined else ""
    yield ""
    if given.startswith("[") or kind == "INTS":
        old = re.findall(r"-?\d+", given)
        if old:
            yield from (f"[{', '.join(n)}]" for n in (old[::-1], old[:-1], [*old, "1"]))
            yield from (f"[{', '.join([*old[:-1], str(n)])}]" for n in _WHOLE)
            yield f"[{', '.join(str(int(n) + 1) for n in old)}]"
        else:
            yield from (str([n] * count) for n in (0, 1, 2) for count in range(1, 5))
    elif given.startswith('"') or kind == "STRING":
        yield from (f'"{word}"' for word in _WORDS)
    elif name in ("to", "dtype"):
        yield from (str(ir.DataType[dtype.upper()].value) for dtype in _DTYPES)
    elif kind == "FLOAT" or "." in given:
        yield from map(str, _REAL)
    elif kind == "INT" or given:
        yield from map(str, _WHOLE)
