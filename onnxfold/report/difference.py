"""What is different in two models: ops, interface, opsets, and tensors by name and by content."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

import onnx_ir as ir

from onnxfold import storage
from onnxfold.report.inventory import Inventory, TensorEntry, inventory_of, stored_tensors

_CHUNK = 1 << 20


@dataclass(frozen=True)
class FieldChange:
    """Something that one or both models have: as text in each, None where it is missing."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class TensorChange:
    """A tensor that is not the same in both models.

    Attributes:
        name: Its name, in the first model if it is there.
        kind: "removed", "added", "renamed" (the same bytes have another name in the second model),
            or "changed" (another type, shape or content of the same name).
        before: The tensor of the first model, or None.
        after: The tensor of the second model, or None.
    """

    name: str
    kind: str
    before: TensorEntry | None
    after: TensorEntry | None

    @property
    def bytes(self) -> int:
        """Of the larger one."""
        return max(t.bytes for t in (self.before, self.after) if t is not None)


@dataclass(frozen=True)
class Difference:
    """What is different in two models.

    Attributes:
        before: The first file.
        after: The second file.
        bytes_before: Bytes of the first file, with its external data.
        bytes_after: Bytes of the second one.
        ops: Nodes by op type in both, for all op types, subgraphs and functions included.
        header: Changes of IR version, opsets and the number of functions.
        inputs: Changes of graph inputs; the order does not count.
        outputs: Changes of graph outputs.
        same_tensors: Tensors that both have, by name and content.
        same_bytes: Their bytes.
        tensors: All others, largest first.
    """

    before: str
    after: str
    bytes_before: int
    bytes_after: int
    ops: dict[str, tuple[int, int]]
    header: list[FieldChange]
    inputs: list[FieldChange]
    outputs: list[FieldChange]
    same_tensors: int
    same_bytes: int
    tensors: list[TensorChange]

    def to_dict(self) -> dict[str, Any]:
        """The same as a JSON-ready dictionary; its keys are stable."""
        return asdict(self)


def take_difference(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> Difference:
    """Reads two models and says what is different.

    Of tensors with the same type and shape the bytes are compared, a mebibyte at a time.

    Raises:
        ModelError: A file cannot be read as a model.
    """
    first, second = storage.load(before), storage.load(after)
    with storage.reading_from(first), storage.reading_from(second):
        a, b = inventory_of(first, before), inventory_of(second, after)
        same, changes = _tensors(_by_name(first), _by_name(second))
    return Difference(
        before=a.path,
        after=b.path,
        bytes_before=a.stored_bytes,
        bytes_after=b.stored_bytes,
        ops={op: (a.nodes.get(op, 0), b.nodes.get(op, 0)) for op in sorted({**a.nodes, **b.nodes})},
        header=_changes(_header(a), _header(b)),
        inputs=_changes({v.name: v.type for v in a.inputs}, {v.name: v.type for v in b.inputs}),
        outputs=_changes({v.name: v.type for v in a.outputs}, {v.name: v.type for v in b.outputs}),
        same_tensors=len(same),
        same_bytes=sum(tensor.nbytes for tensor in same),
        tensors=sorted(changes, key=lambda change: (-change.bytes, change.name)),
    )


def _header(inventory: Inventory) -> dict[str, str]:
    return {
        "IR version": str(inventory.ir_version),
        **{f"opset {d or 'ai.onnx'}": str(v) for d, v in inventory.opsets.items()},
        **({"functions": str(inventory.functions)} if inventory.functions else {}),
    }


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[FieldChange]:
    return [
        FieldChange(name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _by_name(model: ir.Model) -> dict[tuple[str, int], ir.TensorProtocol]:
    """Tensors by name; those that share a name with others are counted."""
    times: Counter[str] = Counter()
    found = {}
    for value, tensor in stored_tensors(model):
        name = value.name or ""
        found[name, times[name]] = tensor
        times[name] += 1
    return found


def _tensors(
    before: Mapping[tuple[str, int], ir.TensorProtocol],
    after: Mapping[tuple[str, int], ir.TensorProtocol],
) -> tuple[list[ir.TensorProtocol], list[TensorChange]]:
    """The tensors that are the same in both, and the others."""
    changed, same = [], []
    for key in (key for key in before if key in after):
        one, other = before[key], after[key]
        if _kind(one) == _kind(other) and _equal(one, other):
            same.append(one)
        else:
            changed.append(_change(key[0], "changed", one, other))
    removed = [key for key in before if key not in after]
    added = [key for key in after if key not in before]
    candidates = {_kind(after[key]) for key in added} & {_kind(before[key]) for key in removed}
    contents: dict[tuple[Any, ...], list[tuple[str, int]]] = defaultdict(list)
    for key in added:
        if _kind(after[key]) in candidates:
            contents[_kind(after[key]), _digest(after[key])].append(key)
    taken = set()
    for key in removed:
        tensor = before[key]
        kind = _kind(tensor)
        others = contents.get((kind, _digest(tensor))) if kind in candidates else None
        if others:
            twin = others.pop(0)
            changed.append(_change(key[0], "renamed", tensor, after[twin], twin[0]))
            taken.add(twin)
        else:
            changed.append(_change(key[0], "removed", tensor, None))
    changed += [_change(key[0], "added", None, after[key]) for key in added if key not in taken]
    return same, changed


def _change(
    name: str,
    kind: str,
    before: ir.TensorProtocol | None,
    after: ir.TensorProtocol | None,
    new_name: str | None = None,
) -> TensorChange:
    return TensorChange(
        name,
        kind,
        None if before is None else TensorEntry.of(name, before),
        None if after is None else TensorEntry.of(new_name or name, after),
    )


def _kind(tensor: ir.TensorProtocol) -> tuple[str, Sequence[int]]:
    return str(tensor.dtype), tuple(tensor.shape.numpy())


def _equal(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    """Whether their stored bytes are the same; their types and shapes are."""
    span = storage.span_of(one)
    if span is not None and span == storage.span_of(other):
        return True
    return all(a == b for a, b in zip_longest(_chunks(one), _chunks(other)))


def _digest(tensor: ir.TensorProtocol) -> bytes:
    """Of the stored bytes, which are not held in memory."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in _chunks(tensor):
        digest.update(chunk)
    return digest.digest()


def _chunks(tensor: ir.TensorProtocol) -> Iterable[Any]:
    if tensor.dtype == ir.DataType.STRING:
        for text in tensor.numpy().reshape(-1):
            data = text if isinstance(text, bytes) else str(text).encode()
            yield len(data).to_bytes(8, "little") + data
        return
    span = storage.span_of(tensor)
    if span is None:
        yield tensor.tobytes()
        return
    stored = span.array()
    for start in range(0, span.length, _CHUNK):
        yield stored[start : start + _CHUNK].data
        # a page that was read stays in memory until it is given back
        span.file.release(span.offset + start, _CHUNK)
