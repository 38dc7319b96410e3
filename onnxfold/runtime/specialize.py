"""An entry session for one setting of the runtime constants: folded tensors are its weights."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.runtime.values import array_of

if TYPE_CHECKING:
    import onnxruntime


def specialized(
    entry: Path,
    bound: Mapping[str, onnxruntime.OrtValue],
    options: onnxruntime.SessionOptions | None,
    providers: Sequence[Any],
) -> onnxruntime.InferenceSession:
    """A session on entry with some inputs turned into weights.

    Args:
        entry: The model.
        bound: The values of those inputs, in the CPU's memory.
        options: Session options.
        providers: Execution providers.
    """
    import onnx_ir as ir
    import onnxruntime as ort

    from onnxfold import storage

    model = storage.load(entry)
    inputs = {value.name: value for value in model.graph.inputs}
    for name, value in bound.items():
        array = array_of(value)
        if array is None:
            continue
        variable = inputs[name]
        dtype = ir.DataType(value.element_type())
        if dtype != ir.DataType.STRING and array.dtype != dtype.numpy():
            array = array.view(dtype.numpy())
        variable.const_value = ir.tensor(array, dtype=dtype, name=name)
        variable.shape = ir.Shape(array.shape)
        model.graph.inputs.remove(variable)
        if name not in model.graph.initializers:
            model.graph.initializers.add(variable)
    with tempfile.TemporaryDirectory(prefix="onnxfold-specialized-") as folder:
        path = Path(folder) / "entry.onnx"
        storage.save(model, path, external_data=True, fsync=False)
        return ort.InferenceSession(str(path), options, providers=list(providers))
