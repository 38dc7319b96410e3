"""Valid bytes made hostile: one to four changes, each to one field of the message."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx

from tests.hostile.fields import Field, Raw, join, split, varint, walk

Change = Callable[[random.Random, list[Field], int], None]
"""Changes the field at a place of a list."""

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
    """Change a model; returns its bytes and what was done."""
    fields = split(data)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        places = list(walk(fields))
        # a kind of field first: else a model of large tensors is all dims and numbers
        kind = rng.choice(sorted({parent[at].kind for parent, at in places}))
        parent, at = rng.choice([p for p in places if p[0][p[1]].kind == kind])
        change = rng.choice(_SPECIAL.get(kind, _BY_TYPE[parent[at].type]))
        if rng.random() < 0.25:
            change = rng.choice(_WIRE)
        change(rng, parent, at)
        done.append(f"{kind}: {change.__name__}")
    whole = join(fields)
    if rng.random() < 0.03:
        whole = whole[: rng.randrange(len(whole) + 1)]
        done.append("the file is cut")
    if whole and rng.random() < 0.03:
        whole = _flipped(rng, whole, rng.choice((1, 3, 30)))
        done.append("bits are flipped")
    return whole, "; ".join(done)


def _flipped(rng: random.Random, data: bytes, count: int) -> bytes:
    block = bytearray(data)
    for _ in range(count):
        block[rng.randrange(len(block))] ^= 1 << rng.randrange(8)
    return bytes(block)


def _other(
    attribute: str, values: Callable[[random.Random, Any], Sequence[Any]], name: str = ""
) -> Change:
    """Another value of an attribute of a field, out of some that may depend on the one it has."""

    def change(rng: random.Random, fields: list[Field], at: int) -> None:
        old = getattr(fields[at], attribute)
        setattr(fields[at], attribute, rng.choice(values(rng, old)))

    change.__name__ = f"other_{name or attribute}"
    return change


# What any field may suffer.


def _lie_about_length(rng: random.Random, fields: list[Field], at: int) -> None:
    true = len(bytes(fields[at]))
    lies = (0, 1, true, true + 1, true + 7, true + 100, 2**31 - 1, 2**32, 2**63, 2**64 - 1)
    fields[at].length = rng.choice(lies)


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
    """Graphs in attributes of nodes in graphs, nothing else."""
    block = b""
    for _ in range(rng.choice((10, 30, 60, 99, 101, 300, 2000, 10000))):
        block = _message(1, _message(4, b"If") + _message(5, b"\xa0\x01\x05" + _message(6, block)))
    fields.insert(at, Raw(block))


def _message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


_NUMBERS_OF_FIELDS = (0, 1, 2, 5, 7, 12, 14, 20, 25, 1000, 2**29 - 1, 2**60)
_WIRE: tuple[Change, ...] = (
    _other("cut", lambda rng, _: (0, 1, 2, 7, rng.randrange(200))),
    _lie_about_length,
    _other("padding", lambda *_: (1, 2, 5, 9, 10, 11, 30)),
    _flip,
    _other("wire_type", lambda *_: range(8)),
    _other("number", lambda *_: _NUMBERS_OF_FIELDS),
    _duplicate,
    _delete,
    _swap,
    _exchange_values,
    _insert,
    _nest,
)


# What a field of a certain type may suffer.


_any_number = _other("value", lambda rng, _: (*INTEGERS, rng.getrandbits(64)), "integer")
_near_number = _other("value", lambda _, v: (v + 1, v - 1, -v, v * 2, ~v, v << 16), "near_integer")
_any_text = _other("value", lambda *_: _TEXTS, "text")
_any_length = _other(
    "value", lambda _, v: (v[:-1], v + b"\0", v * 2, v[: len(v) // 2]), "length_of_value"
)
_random_bytes = _other("value", lambda rng, v: [rng.randbytes(len(v) or 8)], "bytes")


def _empty(rng: random.Random, fields: list[Field], at: int) -> None:
    fields[at].value = []


def _one_less(rng: random.Random, fields: list[Field], at: int) -> None:
    value: Any = fields[at].value
    if value:
        del value[rng.randrange(len(value))]


_BY_TYPE: dict[str, tuple[Change, ...]] = {
    "number": (_any_number, _near_number, _delete),
    "bytes": (_any_text, _any_length, _random_bytes, _delete, _exchange_values),
    "message": (_empty, _one_less, _delete, _duplicate, _swap, _exchange_values),
}


# What a field of a certain meaning may suffer.


def _one_of(*values: int | bytes | str) -> Change:
    known = [v.encode() if isinstance(v, str) else v for v in values]
    return _other("value", lambda *_: known, "known_value")


def _more_dims(rng: random.Random, fields: list[Field], at: int) -> None:
    sizes = rng.choice(((1,) * 70, (1,) * 1000, (2**32, 2**32), (0, 2**62, 2**62), (2**62,) * 9))
    fields[at:at] = [Field(1, 0, size, fields[at].descriptor) for size in sizes]


def _external(rng: random.Random, fields: list[Field], at: int) -> None:
    """Another entry of the external data, whatever it was."""
    number = (rng.choice((b"offset", b"length")), rng.choice(_NUMBERS))
    location = (b"location", rng.choice(_LOCATIONS))
    entries = (location, location, number, number, (b"checksum", "x"), (b"", ""))
    key, value = rng.choice(entries)
    fields[at].value = [Field(1, 2, key), Field(2, 2, value.encode())]


def _a_name_of_this(rng: random.Random, fields: list[Field], at: int) -> None:
    """Another name that is near: cycles, things defined twice, wrong operands."""
    names = [f.value for f in fields if isinstance(f.value, bytes)]
    fields[at].value = rng.choice([*names, b"x", b"y", b"w", b"a", b"c", b"", b"nowhere"])


_TYPE = _one_of(0, 99, -1, 2**31 - 1, *range(1, 28))
_INTEGER = _one_of(*INTEGERS)
_SPECIAL: dict[str, tuple[Change, ...]] = {
    "ModelProto.ir_version": (_one_of(0, -1, 1, 2, 3, 4, 7, 10, 13, 99, 2**40),),
    "OperatorSetIdProto.version": (_one_of(0, -1, 1, 6, 7, 9, 10, 12, 17, 22, 28, 99, 2**40),),
    "OperatorSetIdProto.domain": (_one_of("", "ai.onnx", "x", "local", "ai.onnx.ml"), _any_text),
    "ModelProto.opset_import": (_delete, _duplicate, _one_less, _empty),
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
    "NodeProto.input": (_a_name_of_this, _a_name_of_this, _any_text, _delete, _duplicate, _swap),
    "NodeProto.output": (_a_name_of_this, _any_text, _delete, _duplicate),
    "NodeProto.domain": (_one_of("", "ai.onnx", "local", "com.microsoft", "x"), _any_text),
    "FunctionProto.name": (_a_name_of_this, _one_of(*_OPS), _any_text),
    "SparseTensorProto.dims": (_INTEGER, _more_dims),
}
