"""Changes of an example: its declarations, constants, nodes, outputs and opset."""

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
_INTEGERS = (0, 1, -1, 2, 2**31 - 1, 2**53 + 1, 2**63 - 1, -(2**63), 1 - 2**63)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 1e-40, 3e38, np.inf, -np.inf, np.nan)
_MAX_ELEMENTS = 64  # of a constant whose elements are changed
_ATTRIBUTE = re.compile(r"(\w+)=(\[[^\]]*\]|\"[^\"]*\"|[^\s,<>]+)")
_STRINGS = ("VALID", "SAME_UPPER", "SAME_LOWER", "edge", "reflect", "nonsense")
_OPSETS = (7, 9, 10, 11, 12, 13, 14, 16, 18, 19, 20, 21, 22, 23, 24)


def changes(example: Example) -> Iterator[str]:
    """Yield changes of an example, as arguments of `Example.changed`.

    A changed model may be invalid, and a rule need not apply to the changed model. If onnxruntime
    runs the changed model and the rule applies, the rule must preserve the outputs.
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
    for constant in example.constants.values():
        new_input = replace(constant, value=constant.value or "normal")
        yield f"input {new_input}"
        yield f"input {new_input}; runtime {runtime} {constant.name}"
    for declaration in example.inputs.values():
        dims = tuple(size if size.isdigit() else "2" for size in declaration.dims)
        yield f"<{replace(declaration, dims=dims)}>"
        yield f"runtime {' '.join(sorted({*runtime.split()} ^ {declaration.name}))}"


def _dtypes(example: Example) -> Iterator[str]:
    """Yield other dtypes, for all declarations of a dtype together and for each declaration."""
    declarations = [*example.inputs.values(), *example.constants.values()]
    for old in dict.fromkeys(declaration.dtype for declaration in declarations):
        same_dtype = [declaration for declaration in declarations if declaration.dtype == old]
        groups = [same_dtype]
        if len(same_dtype) > 1:
            groups += [[declaration] for declaration in same_dtype]
        for group in groups:
            for new in _DTYPES:
                if new != old:
                    yield "; ".join(str(replace(declaration, dtype=new)) for declaration in group)


def _shapes(example: Example) -> Iterator[str]:
    """Yield another size for each size, in all shapes that contain it, and other shapes.

    Other shapes are yielded for each input and constant separately.
    """
    declarations = [*example.inputs.values(), *example.constants.values()]
    for old in dict.fromkeys(d for declaration in declarations for d in declaration.dims):
        new_sizes = (str(int(old) + 1), "0", "1", "N") if old.isdigit() else ("1", "2", "3")
        for new in new_sizes:
            replaced = []
            for declaration in declarations:
                if old in declaration.dims:
                    dims = tuple(new if size == old else size for size in declaration.dims)
                    replaced.append(str(replace(declaration, dims=dims)))
            yield "; ".join(replaced)
    for declaration in declarations:
        dims = declaration.dims
        rank = len(dims)
        shapes: list[tuple[str, ...]] = [(), ("1",) * rank, ("0",) * rank]
        shapes += [("1", *dims), (*dims, "1"), dims[1:], dims[:-1], dims[::-1]]
        for k, size in enumerate(dims):
            for new in ("1", "N", "2", "3", str(int(size) + 1) if size.isdigit() else "4"):
                shapes.append((*dims[:k], new, *dims[k + 1 :]))
        for shape in dict.fromkeys(shapes):
            if shape != dims:
                yield str(replace(declaration, dims=shape))


def _elements(example: Example) -> Iterator[str]:
    for constant in example.constants.values():
        array = constant.array(example.sizes)
        if array.size > _MAX_ELEMENTS:
            continue
        values = array.ravel().tolist()
        for special in _special(array.dtype):
            for elements in ([special], [*values[:-1], special], [special, *values[1:]]):
                yield str(replace(constant, value=f"{{{', '.join(map(str, elements))}}}"))
        dims = (*constant.dims[:-1], str(array.shape[-1] + 1)) if constant.dims else ("2",)
        yield str(replace(constant, dims=dims, value=f"{{{', '.join(map(str, values))}}}"))


def _operands(example: Example) -> Iterator[str]:
    """Yield other constants as operands of single nodes.

    Only constants with one element are replaced. Other consumers keep the old constant.
    """
    for text in example.nodes.values():
        head, _, operands = text.rpartition("(")
        for operand in re.findall(r"\w+", operands):
            constant = example.constants.get(operand)
            if constant is None or constant.array(example.sizes).size != 1:
                continue
            changed = re.sub(rf"\b{operand}\b", "other", operands)
            old = constant.array(example.sizes).ravel()
            for number in dict.fromkeys([*(old + 1), *(old - 1), 0, 1, -1, 2]):
                replacement = replace(constant, name="other", value=f"{{{number}}}")
                yield f"<{replacement}>; {head}({changed}"


def _special(dtype: np.dtype[Any]) -> Sequence[float]:
    if dtype == np.bool_:
        return (0, 1)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        numbers = dict.fromkeys((*_INTEGERS, info.min, info.max))
        return [number for number in numbers if info.min <= number <= info.max]
    return _FLOATS


def _attributes(example: Example) -> Iterator[str]:
    """Yield nodes with another value of an attribute, without an attribute, or with a new one."""
    opset = int(example.settings.get("opset", 17))
    for key, text in example.nodes.items():
        head, _, operands = text.partition("(")
        op = head.partition("<")[0].rpartition("= ")[2].strip()
        attributes = dict(_ATTRIBUTE.findall(head))
        schema = schema_of(op, opset, "")
        defined = schema.attributes if schema else {}
        for name in {**attributes, **defined}:
            for value in _values(name, attributes.get(name, ""), defined.get(name)):
                new_attributes = {k: v for k, v in {**attributes, name: value}.items() if v}
                text_form = ", ".join(f"{k}={v}" for k, v in new_attributes.items())
                if new_attributes != attributes:
                    yield f"{key} = {op}{f'<{text_form}>' if text_form else ''}({operands}"


def _values(name: str, text: str, definition: onnx.defs.OpSchema.Attribute | None) -> Iterator[str]:
    """Yield values of an attribute in text form. "" removes the attribute.

    Args:
        name: The name of the attribute.
        text: The current value in text form, or "" without a value.
        definition: The definition of the attribute in the schema of the op, or None if unknown.
    """
    kind = str(definition.type).rpartition(".")[2] if definition else ""
    yield ""
    if text.startswith("[") or kind == "INTS":
        old = re.findall(r"-?\d+", text)
        if old:
            yield from (f"[{', '.join(n)}]" for n in (old[::-1], old[:-1], [*old, "1"]))
            yield from (f"[{', '.join([*old[:-1], str(n)])}]" for n in _INTEGERS)
            yield f"[{', '.join(str(int(n) + 1) for n in old)}]"
        else:
            yield from (str([n] * count) for n in (0, 1, 2) for count in range(1, 5))
    elif text.startswith('"') or kind == "STRING":
        yield from (f'"{word}"' for word in _STRINGS)
    elif name in ("to", "dtype"):
        yield from (str(ir.DataType[dtype.upper()].value) for dtype in _DTYPES)
    elif kind == "FLOAT" or "." in text:
        yield from map(str, _FLOATS)
    elif kind == "INT" or text:
        yield from map(str, _INTEGERS)
