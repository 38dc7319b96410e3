"""The sizes at which kernels are timed, and inputs of such sizes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.compare.dims import concrete
from onnxfold.compare.random_feeds import RandomFeeds
from onnxfold.errors import UsageError
from onnxfold.runtime.backends.component import Component
from onnxfold.runtime.splitting.sizes import NOMINAL

logger = logging.getLogger("onnxfold")

_BATCH = 1  # of a symbolic dimension that is a batch and that the caller names no size for


def shapes_of(component: Component, nominal: Mapping[str, int]) -> list[list[int]]:
    """The shapes of a component's inputs at which its kernel is timed.

    Args:
        component: The component.
        nominal: Sizes of symbolic dimensions by name; others are 1 for a batch and 64.
    """
    sizes = _sizes(component, nominal)
    return [list(concrete(v, sizes)) for v in component.original.graph.inputs]


def nominal_feeds(component: Component, nominal: Mapping[str, int]) -> list[Any] | None:
    """Random inputs of these shapes, None if there are none that can be made up."""
    model = component.original
    inputs = list(model.graph.inputs)
    try:
        feeds = RandomFeeds(model, inputs).make(0, _sizes(component, nominal))
    except UsageError as error:
        logger.info("%s is not timed: %s", component.outputs[0], error)
        return None
    arrays = [feeds[name] for name in component.inputs]
    return arrays if all(isinstance(array, np.ndarray) for array in arrays) else None


def _sizes(component: Component, nominal: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the symbolic dimensions of the inputs; those that must agree do."""
    sizes: dict[str, int] = {}
    for value, info in zip(component.original.graph.inputs, component.demands.inputs, strict=True):
        for dim, name in zip(value.shape or (), info.shape or (), strict=True):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                sizes[dim.value] = _size(name, nominal)
    return sizes


def _size(name: int | str | None, nominal: Mapping[str, int]) -> int:
    if isinstance(name, int):
        return name
    return nominal.get(name or "", _BATCH if "batch" in (name or "").lower() else NOMINAL)
