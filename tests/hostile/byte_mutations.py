"""Change one to four random fields of a valid serialized model.

Rarely, the result is also truncated, or some of its bits are flipped.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx

from tests.hostile.fields import Field, Raw, join, split, varint, walk

Change = Callable[[random.Random, list[Field], int], None]
"""A function that changes the field at an index of a list of fields."""

INTEGERS = (
    0, 1, -1, 2, 3, 4, 7, 16, 99, 127, 128, 255, 1000, 65535, 2**31 - 1, 2**31, -(2**31), 2**32,
    2**40, -(2**40), 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1, -2, -3,
)  # fmt: skip
_TEXTS = (
    b"", b"\0", b"a\0b", b"\xff\xfe", b"\xed\xa0\x80", "\u202e\U0001f600".encode(), b" ", b"a\nb",
    b"x" * 5000, b"../w.bin", b"/etc/passwd", b"If", b"Loop", b"Constant", b"Identity", b"x", b"y",
    b"%s%n{}", b"onnxfold:", b"-1", b"9" * 5000, b"c0", b"r0_0", b"ai.onnx", b"com.microsoft",
    b"nan", b"w.bin", b"\x1b[31m",
)  # fmt: skip
_NUMBERS = (
    "0", "-1", "4096", "16383", "16384", "12288", "18446744073709551615", "9223372036854775807",
    "-9223372036854775808", "1e3", "0x10", " 8", "+8", "8 ", "", "nan", "9" * 5000, "\u0663", "1_0",
)  # fmt: skip
_LOCATIONS = (
    "w.bin", "./w.bin", "/etc/passwd", "../secret", "a/../../secret", "..\\secret", "C:\\w", "",
    "in_link", "out_link", "folder", "pipe", "/dev/zero", ".", "w.bin\0", "folder/", "no", "w.bin/",
    "/proc/self/mem", "//w.bin", "~/w.bin", "file:///etc/passwd", "w" * 300, "short.bin",
)  # fmt: skip
_OPS = tuple(sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}))
_ATTRIBUTES = tuple(
    sorted({a for s in onnx.defs.get_all_schemas() if s.domain == "" for a in s.attributes})
)


def mutate(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Return the bytes of a changed model and a description of the changes."""
    fields = split(data)
    changes = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        places = list(walk(fields))
        # Choose the kind of field first. Otherwise nearly all changes to a model with large tensors
        # would be to dims and numbers.
        kind = rng.choice(sorted({parent[at].kind for parent, at in places}))
        parent, at = rng.choice([p for p in places if p[0][p[1]].kind == kind])
        change = rng.choice(_SPECIAL.get(kind, _BY_TYPE[parent[at].type]))
        if rng.random() < 0.25:
            change = rng.choice(_WIRE)
        change(rng, parent, at)
        changes.append(f"{kind}: {change.__name__}")
    result = join(fields)
    if rng.random() < 0.03:
        result = result[: rng.randrange(len(result) + 1)]
        changes.append("the file is truncated")
    if result and rng.random() < 0.03:
        result = _flipped(rng, result, rng.choice((1, 3, 30)))
        changes.append("bits are flipped")
    return result, "; ".join(changes)


def _flipped(rng: random.Random, data: bytes, count: int) -> bytes:
    block = bytearray(data)
    for _ in range(count):
        block[rng.randrange(len(block))] ^= 1 << rng.randrange(8)
    return bytes(block)


def _replace(
    attribute: str, values: Callable[[random.Random, Any], Sequence[Any]], name: str = ""
) -> Change:
    """Return a change that sets an attribute of a `Field` to one of ``values(rng, old_value)``.

    The description of the change contains ``name``, or the attribute without a name.
    """

    def change(rng: random.Random, fields: list[Field], at: int) -> None:
        old = getattr(fields[at], attribute)
        setattr(fields[at], attribute, rng.choice(values(rng, old)))

    change.__name__ = f"other_{name or attribute}"
    return change


# Changes to any field.


def _wrong_length(rng: random.Random, fields: list[Field], at: int) -> None:
    true = len(bytes(fields[at]))
    lengths = (0, 1, true, true + 1, true + 7, true + 100, 2**31 - 1, 2**32, 2**63, 2**64 - 1)
    fields[at].length = rng.choice(lengths)


def _flip(rng: random.Random, fields: list[Field], at: int) -> None:
    fields[at] = Raw(_flipped(rng, bytes(fields[at]), rng.choice((1, 1, 2, 8))))


def _duplicate(rng: random.Random, fields: list[Field], at: int) -> None:
    fields[at:at] = [fields[at]] * rng.choice((1, 1, 2, 100))


def _delete(rng: random.Random, fields: list[Field], at: int) -> None:
    del fields[at]


def _swap(rng: random.Random, fields: list[Field], at: int) -> None:
    other = rng.randrange(len(fields))
    fields[at] = fields[other]
    fields[other] = fields[at]


def _exchange_values(rng: random.Random, fields: list[Field], at: int) -> None:
    other = rng.choice([f for f in fields if f.type == fields[at].type])
    fields[at].value, other.value = other.value, fields[at].value


def _insert(rng: random.Random, fields: list[Field], at: int) -> None:
    unknown = (
        varint(1000 << 3 | 2) + varint(3) + b"abc",
        varint(1000 << 3) + varint(2**64 - 1),
        varint(9 << 3 | 3) + varint(9 << 3 | 4),  # a group
        varint(9 << 3 | 3),  # a group that does not end
        varint(9 << 3 | 4),  # a group that does not begin
        varint(9 << 3 | 3) * 200,
        varint(1 << 3 | 6),
        bytes(3),
        varint((1 << 40) << 3),
        rng.randbytes(12),
    )
    fields.insert(at, Raw(rng.choice(unknown)))


def _nest(rng: random.Random, fields: list[Field], at: int) -> None:
    """Insert the bytes of deeply nested graphs.

    Each graph contains only an If, and an attribute of this If contains the next graph.
    """
    block = b""
    for _ in range(rng.choice((10, 30, 60, 99, 101, 300, 2000, 10000))):
        block = _message(1, _message(4, b"If") + _message(5, b"\xa0\x01\x05" + _message(6, block)))
    fields.insert(at, Raw(block))


def _message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


_NUMBERS_OF_FIELDS = (0, 1, 2, 5, 7, 12, 14, 20, 25, 1000, 2**29 - 1, 2**60)
_WIRE: tuple[Change, ...] = (
    _replace("cut", lambda rng, _: (0, 1, 2, 7, rng.randrange(200))),
    _wrong_length,
    _replace("padding", lambda *_: (1, 2, 5, 9, 10, 11, 30)),
    _flip,
    _replace("wire_type", lambda *_: range(8)),
    _replace("number", lambda *_: _NUMBERS_OF_FIELDS),
    _duplicate,
    _delete,
    _swap,
    _exchange_values,
    _insert,
    _nest,
)


# Changes to fields of one type.


_any_number = _replace("value", lambda rng, _: (*INTEGERS, rng.getrandbits(64)), "integer")
_near_number = _replace(
    "value", lambda _, v: (v + 1, v - 1, -v, v * 2, ~v, v << 16), "near_integer"
)
_any_text = _replace("value", lambda *_: _TEXTS, "text")
_any_length = _replace(
    "value", lambda _, v: (v[:-1], v + b"\0", v * 2, v[: len(v) // 2]), "length_of_value"
)
_random_bytes = _replace("value", lambda rng, v: [rng.randbytes(len(v) or 8)], "bytes")


def _empty(rng: random.Random, fields: list[Field], at: int) -> None:
    fields[at].value = []


def _delete_element(rng: random.Random, fields: list[Field], at: int) -> None:
    value: Any = fields[at].value
    if value:
        del value[rng.randrange(len(value))]


_BY_TYPE: dict[str, tuple[Change, ...]] = {
    "number": (_any_number, _near_number, _delete),
    "bytes": (_any_text, _any_length, _random_bytes, _delete, _exchange_values),
    "message": (_empty, _delete_element, _delete, _duplicate, _swap, _exchange_values),
}


# Changes to fields with a known meaning.


def _one_of(*values: int | bytes | str) -> Change:
    known = [v.encode() if isinstance(v, str) else v for v in values]
    return _replace("value", lambda *_: known, "known_value")


def _more_dims(rng: random.Random, fields: list[Field], at: int) -> None:
    sizes = rng.choice(((1,) * 70, (1,) * 1000, (2**32, 2**32), (0, 2**62, 2**62), (2**62,) * 9))
    fields[at:at] = [Field(1, 0, size, fields[at].descriptor) for size in sizes]


def _external(rng: random.Random, fields: list[Field], at: int) -> None:
    """Replace an entry of the external data, regardless of its key."""
    number = (rng.choice((b"offset", b"length")), rng.choice(_NUMBERS))
    location = (b"location", rng.choice(_LOCATIONS))
    entries = (location, location, number, number, (b"checksum", "x"), (b"", ""))
    key, value = rng.choice(entries)
    fields[at].value = [Field(1, 2, key), Field(2, 2, value.encode())]


def _name_nearby(rng: random.Random, fields: list[Field], at: int) -> None:
    """Replace a name by another one of the same message or by a short name.

    This can create cycles, duplicates and wrong operands.
    """
    names = [f.value for f in fields if isinstance(f.value, bytes)]
    fields[at].value = rng.choice([*names, b"x", b"y", b"w", b"a", b"c", b"", b"nowhere"])


_TYPE = _one_of(0, 99, -1, 2**31 - 1, *range(1, 28))
_INTEGER = _one_of(*INTEGERS)
_SPECIAL: dict[str, tuple[Change, ...]] = {
    "ModelProto.ir_version": (_one_of(0, -1, 1, 2, 3, 4, 7, 10, 13, 99, 2**40),),
    "OperatorSetIdProto.version": (_one_of(0, -1, 1, 6, 7, 9, 10, 12, 17, 22, 28, 99, 2**40),),
    "OperatorSetIdProto.domain": (_one_of("", "ai.onnx", "x", "local", "ai.onnx.ml"), _any_text),
    "ModelProto.opset_import": (_delete, _duplicate, _delete_element, _empty),
    "TensorProto.dims": (_INTEGER, _INTEGER, _more_dims, _delete, _duplicate),
    "TensorProto.data_type": (_TYPE,),
    "Tensor.elem_type": (_TYPE,),
    "TypeProto.Tensor.elem_type": (_TYPE,),
    "TensorProto.data_location": (_one_of(0, 1, 2, 99),),
    "TensorProto.external_data": (_external, _external, _delete, _duplicate),
    "TensorShapeProto.Dimension.dim_value": (_INTEGER,),
    "AttributeProto.type": (_one_of(*range(16), 99, -1),),
    "AttributeProto.i": (_INTEGER,),
    "AttributeProto.ints": (_INTEGER, _duplicate, _delete),
    "AttributeProto.name": (_one_of(*_ATTRIBUTES), _any_text),
    "NodeProto.op_type": (_one_of(*_OPS), _one_of(*_OPS), _any_text),
    "NodeProto.input": (_name_nearby, _name_nearby, _any_text, _delete, _duplicate, _swap),
    "NodeProto.output": (_name_nearby, _any_text, _delete, _duplicate),
    "NodeProto.domain": (_one_of("", "ai.onnx", "local", "com.microsoft", "x"), _any_text),
    "FunctionProto.name": (_name_nearby, _one_of(*_OPS), _any_text),
    "SparseTensorProto.dims": (_INTEGER, _more_dims),
}
