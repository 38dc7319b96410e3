"""What random graphs reached: ops, kernels and rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import onnx

from onnxfold.kernels.registry import NumpyKernel, all_kernels
from onnxfold.passes import pipeline

from .families.idioms import all_rules


class Coverage:
    """Counts in this process; :meth:`taken` gives them away."""

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self._watch()

    def _watch(self) -> None:
        arguments = NumpyKernel.arguments
        run_passes = pipeline.run_passes
        coverage = self

        def counted(kernel: NumpyKernel, *args: Any, **kwargs: Any) -> Any:
            coverage.kernels[kernel_name(kernel)] += 1
            return arguments(kernel, *args, **kwargs)

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = run_passes(*args, **kwargs)
            coverage.rules.update(result.rewrites)
            return result

        NumpyKernel.arguments = counted  # type: ignore[method-assign]
        pipeline.run_passes = watched  # type: ignore[assignment]

    def taken(self) -> dict[str, Counter[str]]:
        """What was counted since the last time."""
        found = {"kernels": self.kernels, "rules": self.rules}
        self.kernels, self.rules = Counter(), Counter()
        return found


def kernel_name(kernel: NumpyKernel) -> str:
    return f"{kernel.op_type}-{kernel.since}"


def kernel_names() -> list[str]:
    return [kernel_name(k) for k in all_kernels()]


def rule_names() -> list[str]:
    return [name for name, _ in all_rules()]


def ops_of(model: onnx.ModelProto) -> Counter[str]:
    """How often each op is in the model, subgraphs and functions included."""
    found: Counter[str] = Counter()

    def walk(nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            found[node.op_type if not node.domain else f"{node.domain}.{node.op_type}"] += 1
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    walk(attribute.g.node)

    walk(model.graph.node)
    for function in model.functions:
        walk(function.node)
    return found
