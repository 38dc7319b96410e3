"""Valid bytes made hostile: one to four changes, each to one field of the message."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx

from tests.hostile.fields import Field, join, split, varint, walk

Change = Callable[[random.Random, list[Field], int], str]
"""Changes the field at a place of a list; returns what it did."""

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
        kinds = sorted({_kind(parent[at]) for parent, at in places})
        kind = rng.choice(kinds)
        parent, at = rng.choice([p for p in places if _kind(p[0][p[1]]) == kind])
        about = _named(parent[at])
        change = rng.choice(_SPECIAL.get(about, _BY_TYPE[_type_of(parent[at])]))
        if rng.random() < 0.25:
            change = rng.choice(_WIRE)
        done.append(f"{about or kind}: {change(rng, parent, at)}")
    whole = join(fields)
    if rng.random() < 0.03:
        whole = whole[: rng.randrange(len(whole) + 1)]
        done.append("the file is cut")
    if whole and rng.random() < 0.03:
        block = bytearray(whole)
        for _ in range(rng.choice((1, 3, 30))):
            block[rng.randrange(len(block))] ^= 1 << rng.randrange(8)
        whole = bytes(block)
        done.append("bits are flipped")
    return whole, "; ".join(done)


def _named(field: Field) -> str:
    return field.descriptor.full_name.removeprefix("onnx.") if field.descriptor is not None else ""


def _kind(field: Field) -> str:
    return _named(field) or f"field {field.number}"


def _type_of(field: Field) -> str:
    if isinstance(field.value, list):
        return "message"
    return "bytes" if isinstance(field.value, bytes) else "number"


# What any field may suffer.


def _truncate(rng: random.Random, fields: list[Field], at: int) -> str:
    fields[at].cut = rng.choice((0, 1, 2, 7, rng.randrange(200)))
    return f"cut to {fields[at].cut} bytes"


def _lie_about_length(rng: random.Random, fields: list[Field], at: int) -> str:
    true = len(bytes(fields[at]))
    lies = (0, 1, true, true + 1, true + 7, true + 100, 2**31 - 1, 2**32, 2**63, 2**64 - 1)
    fields[at].length = rng.choice(lies)
    return f"length {fields[at].length}"


def _pad(rng: random.Random, fields: list[Field], at: int) -> str:
    fields[at].padding = rng.choice((1, 2, 5, 9, 10, 11, 30))
    return f"{fields[at].padding} needless bytes in a number"


def _flip(rng: random.Random, fields: list[Field], at: int) -> str:
    block = bytearray(bytes(fields[at]))
    for _ in range(rng.choice((1, 1, 2, 8))):
        block[rng.randrange(len(block))] ^= 1 << rng.randrange(8)
    fields[at] = Field(1, 2, b"", before=bytes(block))
    fields[at] = _Raw(bytes(block))
    return "bits flipped"


class _Raw(Field):
    """Bytes in the place of a field."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(0, 2, raw)

    def __bytes__(self) -> bytes:
        assert isinstance(self.value, bytes)
        return self.value


def _other_wire_type(rng: random.Random, fields: list[Field], at: int) -> str:
    fields[at].wire_type = rng.choice((0, 1, 2, 3, 4, 5, 6, 7))
    return f"wire type {fields[at].wire_type}"


def _other_number(rng: random.Random, fields: list[Field], at: int) -> str:
    fields[at].number = rng.choice((0, 1, 2, 5, 7, 12, 14, 20, 25, 1000, 2**29 - 1, 2**60))
    return f"number {fields[at].number}"


def _duplicate(rng: random.Random, fields: list[Field], at: int) -> str:
    times = rng.choice((1, 1, 2, 100))
    fields[at:at] = [fields[at]] * times
    return f"{times} times more"


def _delete(rng: random.Random, fields: list[Field], at: int) -> str:
    del fields[at]
    return "deleted"


def _swap(rng: random.Random, fields: list[Field], at: int) -> str:
    other = rng.randrange(len(fields))
    fields[at], fields[other] = fields[other], fields[at]
    return "swapped"


def _exchange_values(rng: random.Random, fields: list[Field], at: int) -> str:
    same = [f for f in fields if _type_of(f) == _type_of(fields[at])]
    other = rng.choice(same)
    fields[at].value, other.value = other.value, fields[at].value
    return f"value exchanged with {_kind(other)}"


def _insert(rng: random.Random, fields: list[Field], at: int) -> str:
    unknown = rng.choice(
        (
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
    )
    fields.insert(at, _Raw(unknown))
    return f"{unknown[:8].hex()} in front"


def _nest(rng: random.Random, fields: list[Field], at: int) -> str:
    """Graphs in attributes of nodes in graphs, nothing else."""
    depth = rng.choice((10, 30, 60, 99, 101, 300, 2000, 10000))
    block = b""
    for _ in range(depth):
        block = _message(1, _message(4, b"If") + _message(5, b"\xa0\x01\x05" + _message(6, block)))
    fields.insert(at, _Raw(block))
    return f"{depth} nested graphs"


def _message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


_WIRE: tuple[Change, ...] = (
    _truncate, _lie_about_length, _pad, _flip, _other_wire_type, _other_number, _duplicate,
    _delete, _swap, _exchange_values, _insert, _nest,
)  # fmt: skip


# What a field of a certain type may suffer.


def _any_number(rng: random.Random, fields: list[Field], at: int) -> str:
    fields[at].value = rng.choice((*INTEGERS, rng.getrandbits(64)))
    return f"= {fields[at].value}"


def _near_number(rng: random.Random, fields: list[Field], at: int) -> str:
    value = fields[at].value
    assert isinstance(value, int)
    fields[at].value = rng.choice((value + 1, value - 1, -value, value * 2, ~value, value << 16))
    return f"= {fields[at].value}"


def _any_text(rng: random.Random, fields: list[Field], at: int) -> str:
    fields[at].value = rng.choice(_TEXTS)
    return f"= {fields[at].value[:20]!r}"  # type: ignore[index]


def _any_length(rng: random.Random, fields: list[Field], at: int) -> str:
    value = fields[at].value
    assert isinstance(value, bytes)
    fields[at].value = rng.choice((value[:-1], value + b"\0", value * 2, value[: len(value) // 2]))
    return f"of {len(fields[at].value)} bytes"  # type: ignore[arg-type]


def _random_bytes(rng: random.Random, fields: list[Field], at: int) -> str:
    value = fields[at].value
    assert isinstance(value, bytes)
    fields[at].value = rng.randbytes(len(value)) if value else rng.randbytes(8)
    return "random bytes"


def _empty(rng: random.Random, fields: list[Field], at: int) -> str:
    fields[at].value = []
    return "empty"


def _one_less(rng: random.Random, fields: list[Field], at: int) -> str:
    value = fields[at].value
    assert isinstance(value, list)
    if value:
        del value[rng.randrange(len(value))]
    return "a field of it deleted"


_BY_TYPE: dict[str, tuple[Change, ...]] = {
    "number": (_any_number, _near_number, _delete),
    "bytes": (_any_text, _any_length, _random_bytes, _delete, _exchange_values),
    "message": (_empty, _one_less, _delete, _duplicate, _swap, _exchange_values),
}


# What a field of a certain meaning may suffer.


def _one_of(*values: int | bytes | str) -> Change:
    def change(rng: random.Random, fields: list[Field], at: int) -> str:
        value = rng.choice(values)
        fields[at].value = value.encode() if isinstance(value, str) else value
        return f"= {value!r:.40}"

    return change


def _more_dims(rng: random.Random, fields: list[Field], at: int) -> str:
    sizes = rng.choice(((1,) * 70, (1,) * 1000, (2**32, 2**32), (0, 2**62, 2**62), (2**62,) * 9))
    fields[at:at] = [Field(1, 0, size, fields[at].descriptor) for size in sizes]
    return f"{len(sizes)} dims {sizes[:3]} more"


def _type(rng: random.Random, fields: list[Field], at: int) -> str:
    fields[at].value = rng.choice((0, 99, -1, 2**31 - 1, *range(1, 28)))
    return f"= {fields[at].value}"


def _external(rng: random.Random, fields: list[Field], at: int) -> str:
    """Another entry of the external data, whatever it was."""
    key, value = rng.choice(
        (
            (b"location", rng.choice(_LOCATIONS)),
            (b"location", rng.choice(_LOCATIONS)),
            (rng.choice((b"offset", b"length")), rng.choice(_NUMBERS)),
            (rng.choice((b"offset", b"length")), rng.choice(_NUMBERS)),
            (b"checksum", "x"),
            (b"", ""),
        )
    )
    fields[at].value = [Field(1, 2, key), Field(2, 2, value.encode())]
    return f"{key.decode()} = {value[:30]!r}"


def _a_name_of_this(rng: random.Random, fields: list[Field], at: int) -> str:
    """Another name that is near: cycles, things defined twice, wrong operands."""
    names = [f.value for f in fields if isinstance(f.value, bytes)]
    fields[at].value = rng.choice([*names, b"x", b"y", b"w", b"a", b"c", b"", b"nowhere"])
    return f"= {fields[at].value!r:.40}"


_INTEGER = _one_of(*INTEGERS)
_SPECIAL: dict[str, tuple[Change, ...]] = {
    "ModelProto.ir_version": (_one_of(0, -1, 1, 2, 3, 4, 7, 10, 13, 99, 2**40),),
    "OperatorSetIdProto.version": (_one_of(0, -1, 1, 6, 7, 9, 10, 12, 17, 22, 28, 99, 2**40),),
    "OperatorSetIdProto.domain": (_one_of("", "ai.onnx", "x", "local", "ai.onnx.ml"), _any_text),
    "ModelProto.opset_import": (_delete, _duplicate, _one_less, _empty),
    "TensorProto.dims": (_INTEGER, _INTEGER, _more_dims, _delete, _duplicate),
    "TensorProto.data_type": (_type,),
    "Tensor.elem_type": (_type,),
    "TypeProto.Tensor.elem_type": (_type,),
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
