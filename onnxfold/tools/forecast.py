"""Predict the memory and the output of a run before large constants are computed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.api.options import Options
from onnxfold.fold.block_execution import is_streamable
from onnxfold.fold.operation import deferred_operations
from onnxfold.fold.pool import Buffer, Pool
from onnxfold.fold.pool.blocks import LARGE, SLAB
from onnxfold.fold.pool.pool import STORING_BYTES
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs
from onnxfold.ir.storage.layout import EXTERNAL_FROM
from onnxfold.passes.stored_cut import Cut, Decision
from onnxfold.support.parallel import THREADS
from onnxfold.support.system import rss_bytes
from onnxfold.support.tables import Printable, Table, bytes_text

# Bytes of memory, measured on CPython 3.11 on Linux.
_MODULES = 10 << 20  # modules and state of rules, symbolic shapes and writing
_PER_NODE = 3_000  # data of the passes for each node
_ONNXRUNTIME = 30 << 20  # importing onnxruntime and creating a session
_CHECK = 44 << 20  # running two models one after the other, in addition to the original's bytes


@dataclass(frozen=True)
class Prediction:
    """An upper bound of a run's memory, and the size of the tensors that the run writes.

    Attributes:
        peak_bytes: Peak resident memory of the process, in bytes.
        bytes_written: Bytes of the tensors that are written.
        memory: Parts of the peak in bytes by name. "now" is the process so far, "modules" further
            imports, and "graph" the data of the passes. "constants" is the computation of
            constants, and "check" the check, or 0 without a check. Only the larger one of these
            last two counts for the peak.
    """

    peak_bytes: int
    bytes_written: int
    memory: dict[str, int]


@dataclass(frozen=True, repr=False)
class Plan(Printable):
    """The result of a dry run.

    Attributes:
        source: The file, or "a model in memory".
        nodes: Number of nodes of the model, including subgraphs and functions.
        folded: Number of nodes that the first constant propagation removes, before any rules.
        prediction: The memory and the output of the run.
        decisions: The decisions about kept nodes with constant inputs. With the option ``explain``,
            also the decisions about folded nodes.
    """

    source: str
    nodes: int
    folded: int
    prediction: Prediction
    decisions: list[Decision]

    def _text_parts(self) -> Iterator[str | Table]:
        memory = self.prediction.memory
        larger = max(("constants", "check"), key=lambda name: memory[name])
        parts = ("now", "modules", "graph", larger)
        terms = " + ".join(f"{bytes_text(memory[name])} {name}" for name in parts)
        peak = bytes_text(self.prediction.peak_bytes)
        yield f"plan for {self.source}: nothing was written"
        removed = f"{self.folded} of them are constant and are removed first"
        yield f"  nodes        {self.nodes}; {removed}"
        yield f"  peak memory  at most {peak} = {terms}"
        yield f"  to write     {bytes_text(self.prediction.bytes_written)} of weights"


def predict(
    model: ir.Model,
    cut: Cut,
    pool: Pool,
    options: Options,
    *,
    bytes_before: int,
    share_weights: bool = False,
    check: bool = False,
) -> Prediction:
    """Return an upper bound of a run's memory and the size of its output.

    Args:
        model: The model after the first decisions of constant propagation, before any node is
            removed.
        cut: The values to store and the nodes to remove.
        pool: The buffers of the constants.
        options: The options of the run.
        bytes_before: Stored bytes of the original model.
        share_weights: Whether the output refers to unchanged weights in their files.
        check: Whether both models run on onnxruntime at the end.
    """
    stored = [pool.buffer_of(value) for value in cut.stored]
    sizes = [buffer.nbytes for buffer in stored]
    largest = max(sizes, default=0)
    written = min(largest, LARGE) + THREADS * min(largest, SLAB)  # mapped pages; blocks
    unchanged = _unchanged(model, set(cut.removed), share_weights)
    memory = {
        "now": rss_bytes(),
        "modules": 0 if "onnxruntime" in sys.modules else _ONNXRUNTIME,
        "graph": sum(len(graph) for graph in all_graphs(model)) * _PER_NODE,
        "constants": min(pool.memory_limit, _required_bytes(stored)) + written,
        "check": _CHECK + bytes_before if check else 0,
    }
    memory["modules"] += _MODULES if options.level > 0 else 0
    resident = memory["now"] + memory["modules"] + memory["graph"]
    peak = resident + max(memory["constants"], memory["check"])
    return Prediction(peak, sum(sizes) + sum(unchanged), memory)


def _required_bytes(stored: Sequence[Buffer]) -> int:
    """Return the bytes of memory that computing the stored constants requires.

    The operands and results of each operation that is not streamed are in memory. Of a streamed
    operation, only results with several references are in memory. If any buffers are in memory, the
    threads also take working memory.
    """
    required: set[Buffer] = set()
    for operation in deferred_operations(stored):
        if is_streamable(operation):
            required.update(b for b in operation.results if b is not None and b.references > 1)
        else:
            required.update(b for b in (*operation.operands, *operation.results) if b is not None)
    return sum(buffer.nbytes for buffer in required) + STORING_BYTES * bool(required)


def _unchanged(model: ir.Model, removed: Collection[ir.Node], share_weights: bool) -> Iterator[int]:
    """Yield the size in bytes of each tensor that remains in use and has to be copied."""
    for graph in all_graphs(model):
        constants = [n.outputs[0] for n in graph if n.op_type == "Constant"]
        for value in (*graph.initializers.values(), *constants):
            tensor = storage.stored_or_default(value)
            is_used = value.is_graph_output() or any(u.node not in removed for u in value.uses())
            # Small tensors are part of the protobuf message and are not counted.
            if tensor is None or isinstance(tensor, ir.TensorProtoTensor) or not is_used:
                continue
            nbytes = storage.data_bytes(tensor.dtype, tensor.shape)
            if not share_weights or nbytes < EXTERNAL_FROM or storage.span_of(tensor) is None:
                yield nbytes
