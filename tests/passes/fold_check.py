"""Helpers that fold a model and compare the result with the original on onnxruntime."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from model_table import floats, parse, with_weights
from reference_session import reference_session, same_bits

from onnxfold.api.options import Options
from onnxfold.fold.evaluation import TimeLimit
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs
from onnxfold.passes.context import Result
from onnxfold.passes.pipeline import run_passes

Feeds = Mapping[str, np.ndarray]


@dataclass
class Folded:
    """A folded model, the number of its nodes by op type, and the result of the passes.

    ``reasons`` maps the op types of kept nodes with constant inputs to the reasons.
    """

    before: onnx.ModelProto
    proto: onnx.ModelProto
    outcome: Result
    ops: dict[str, int]
    reasons: dict[str, str]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        graph = ir.from_proto(self.proto).graph
        return {name: np.asarray(v.const_value.numpy()) for name, v in graph.initializers.items()}

    @property
    def outputs(self) -> list[str]:
        return [o.name for o in self.proto.graph.output]


def fold(
    model: onnx.ModelProto | str,
    feeds: Feeds | None = None,
    *,
    time: TimeLimit | None = None,
    is_valid: bool = True,
    **options: Any,
) -> Folded:
    """Fold a model, by default at level 0 and without growth.

    Assert that the names of inputs and outputs are kept, and that the result is valid if
    ``is_valid``. With ``feeds``, also assert that the outputs are equal bit for bit.
    """
    proto = parse(model) if isinstance(model, str) else model
    opened = storage.from_proto(proto)
    outcome = run_passes(opened, Options(**{"level": 0, "max_growth": 0, **options}), time=time)
    result = storage.to_proto(opened)
    if is_valid:
        onnx.checker.check_model(result)
    reasons = {d.op_type.rpartition("::")[2]: d.reason for d in outcome.kept_nodes.values()}
    folded = Folded(proto, result, outcome, count_ops(opened), reasons)
    assert interface(proto) == interface(result)
    if feeds is not None:
        assert_same(proto, result, feeds)
    return folded


def count_ops(model: ir.Model) -> dict[str, int]:
    """Count the nodes of each op type, including Constant nodes, in all subgraphs and functions."""
    return dict(Counter(node.op_type for graph in all_graphs(model) for node in graph))


def interface(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    return [i.name for i in graph.input] + ["=>"] + [o.name for o in graph.output]


def run(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """Return the outputs of a model on onnxruntime's CPU provider without graph optimizations."""
    return reference_session(model).run(None, dict(feeds))


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Feeds) -> None:
    names = [o.name for o in before.graph.output]
    for name, want, got in zip(names, run(before, feeds), run(after, feeds), strict=True):
        assert same_bits(want, got), name


X = {"x": np.array([1.5, -2.0], np.float32)}


large = floats
"""An alias of `floats` for random weights. A weight of shape [64, 64] takes 16 KiB."""

__all__ = ["Folded", "X", "assert_same", "fold", "large", "parse", "run", "with_weights"]
