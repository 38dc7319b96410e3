"""Differences of two models: ops, interface, opsets, and tensors by name and by content."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold import storage
from onnxfold.report.console import Table, bytes_text, ops_table
from onnxfold.report.inventory import Inventory, TensorEntry, inventory_of, stored_tensors
from onnxfold.table_repr import Shown

_CHUNK = 1 << 20
_MOST_SHOWN = 20  # tensors

_Key = tuple[str, int]
_Tensors = Mapping[_Key, tuple[TensorEntry, ir.TensorProtocol]]


@dataclass(frozen=True)
class FieldChange:
    """A property as text in each model; None in a model that does not have it."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class TensorChange:
    """A tensor that differs between the models.

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
        """The size of the larger tensor in bytes."""
        return max(t.bytes for t in (self.before, self.after) if t is not None)

    def row(self) -> tuple[str, ...]:
        """Return the texts of the change in a table."""
        new = f" -> {self.after.name}" if self.after and self.kind == "renamed" else ""
        both = (self.before, self.after)
        types = (f"{t.type} {bytes_text(t.bytes)}" if t is not None else "" for t in both)
        return (f"{self.name}{new}", self.kind, *types)


@dataclass(frozen=True, repr=False)
class Difference(Shown, text="onnxfold.report.difference:Difference.lines"):
    """The differences of two models.

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

    def lines(self) -> Iterator[str | Table]:
        """Yield the same as lines and tables."""
        yield f"from {self.before} to {self.after}"
        yield ""
        before, after = ({op: counts[k] for op, counts in self.ops.items()} for k in (0, 1))
        yield ops_table(before, after, self.bytes_before, self.bytes_after)
        fields = (("model", self.header), ("input", self.inputs), ("output", self.outputs))
        for what, changes in fields:
            if changes:
                rows = [(c.name, c.before or "none", c.after or "none") for c in changes]
                yield from ("", Table((what, "before", "after"), rows))
        counts = [f"{self.same_tensors:,} tensors are the same ({bytes_text(self.same_bytes)})"]
        for kind in ("changed", "renamed", "removed", "added"):
            sizes = [change.bytes for change in self.tensors if change.kind == kind]
            if sizes:
                counts.append(f"{len(sizes):,} {kind} ({bytes_text(sum(sizes))})")
        yield from ("", ", ".join(counts))
        if self.tensors:
            shown = [change.row() for change in self.tensors[:_MOST_SHOWN]]
            yield from ("", Table(("tensor", "", "before", "after"), shown))
        if len(self.tensors) > _MOST_SHOWN:
            yield f"and {len(self.tensors) - _MOST_SHOWN} more: --json lists all"


def take_difference(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> Difference:
    """Read two models and return their differences.

    Tensors with the same type and shape are compared in blocks of one mebibyte.

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
        same_bytes=sum(entry.bytes for entry in same),
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


def _by_name(model: ir.Model) -> _Tensors:
    """Tensors by name; those that share a name with others are counted."""
    times: Counter[str] = Counter()
    found: dict[_Key, tuple[TensorEntry, ir.TensorProtocol]] = {}
    for value, tensor in stored_tensors(model):
        name = value.name or ""
        found[name, times[name]] = TensorEntry.of(name, tensor), tensor
        times[name] += 1
    return found


def _tensors(before: _Tensors, after: _Tensors) -> tuple[list[TensorEntry], list[TensorChange]]:
    """Return the tensors that are the same in both, and the others."""
    same: list[TensorEntry] = []
    changes: list[TensorChange] = []
    added: dict[tuple[str, bytes], list[TensorEntry]] = defaultdict(list)
    for key, (entry, tensor) in after.items():
        if key not in before:
            added[entry.type, _digest(tensor)].append(entry)
    for key, (entry, tensor) in before.items():
        if key not in after:
            twins = added[entry.type, _digest(tensor)]
            twin = twins.pop(0) if twins else None
            changes.append(TensorChange(entry.name, "renamed" if twin else "removed", entry, twin))
        elif entry.type == after[key][0].type and _same_bytes(tensor, after[key][1]):
            same.append(entry)
        else:
            changes.append(TensorChange(entry.name, "changed", entry, after[key][0]))
    left = (entry for entries in added.values() for entry in entries)
    return same, [*changes, *(TensorChange(entry.name, "added", None, entry) for entry in left)]


def _same_bytes(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    span = storage.span_of(one)
    is_shared = span is not None and span == storage.span_of(other)
    return is_shared or _digest(one) == _digest(other)


def _digest(tensor: ir.TensorProtocol) -> bytes:
    """Return the digest of the stored bytes, which are not held in memory."""
    digest = hashlib.blake2b(digest_size=16)
    span = storage.span_of(tensor)
    if span is None:
        is_text = tensor.dtype == ir.DataType.STRING
        digest.update(repr(tensor.numpy().tolist()).encode() if is_text else tensor.tobytes())
        return digest.digest()
    stored = span.array()
    for start in range(0, span.length, _CHUNK):
        digest.update(stored[start : start + _CHUNK].data)
        # pages that were read stay in memory until they are released
        span.file.release(span.offset + start, _CHUNK)
    return digest.digest()
