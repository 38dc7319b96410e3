"""An entry session for one setting of the runtime constants: folded tensors are its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onnxfold.runtime.values import array_of, is_text

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime


def specialized(
    entry: ir.Model,
    bound: Mapping[str, onnxruntime.OrtValue],
    options: onnxruntime.SessionOptions | None,
    providers: Sequence[Any],
) -> onnxruntime.InferenceSession:
    """A session on entry with some inputs turned into weights.

    Args:
        entry: The model; it is changed.
        bound: The values of those inputs; what is no array of numbers in the CPU's memory stays an
            input.
        options: Session options.
        providers: Execution providers.
    """
    import onnx_ir as ir

    from onnxfold.runtime.opening import open_model

    graph = entry.graph
    inputs = {value.name: value for value in graph.inputs}
    for name, value in bound.items():
        array = array_of(value)
        if array is None or is_text(value):
            continue
        variable = inputs[name]
        dtype = ir.DataType(value.element_type())
        if array.dtype != dtype.numpy():
            array = array.view(dtype.numpy())
        variable.const_value = ir.tensor(array, dtype=dtype, name=name)
        variable.shape = ir.Shape(array.shape)
        graph.inputs.remove(variable)
        if name not in graph.initializers:
            graph.initializers.add(variable)
    return open_model(entry, options, providers)
