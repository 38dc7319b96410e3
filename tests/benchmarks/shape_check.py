"""``python -m tests.benchmarks.shape_check MODEL OUT.json RESULT...``: compare types with runs.

onnxruntime runs the model twice on random inputs, if possible with different sizes of dynamic
dimensions, and returns all values of the main graph. Each RESULT is the model with recorded types.
OUT.json lists for each RESULT the values whose recorded type contradicts a run.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from onnxfold.ir import storage
from onnxfold.tools.comparison.runners import open_runner
from onnxfold.tools.comparison.trials import Trials

_SEEDS = 2
_FUNCTIONS = {
    "floor": math.floor,
    "ceiling": math.ceil,
    "Max": max,
    "max": max,
    "Min": min,
    "min": min,
    "Mod": lambda a, b: a % b,
}


def runs_of(model: onnx.ModelProto) -> list[tuple[dict[str, int], dict[str, np.ndarray]]]:
    """Return the sizes of named dimensions and the tensors of the main graph for each run.

    The results of all nodes of the main graph become outputs of ``model``.
    """
    opened = storage.from_proto(model)
    inputs = [v for v in opened.graph.inputs if v.name not in opened.graph.initializers]
    declared = list(model.graph.output)
    known = {value.name for value in declared}
    for node in model.graph.node:
        names = [name for name in node.output if name and name not in known]
        model.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, names))
        known.update(names)
    _, run, _ = open_runner(model.SerializeToString(), fallback=False)
    trials = Trials(opened, inputs, {})
    runs = []
    for seed in range(_SEEDS):
        _, made, sizes = trials.find(seed, run)
        arrays = {name: value for name, value in made.items() if isinstance(value, np.ndarray)}
        runs.append((_sizes_of_outputs(declared, arrays) | dict(sizes), arrays))
    return runs


def _sizes_of_outputs(
    outputs: Sequence[onnx.ValueInfoProto], arrays: Mapping[str, np.ndarray]
) -> dict[str, int]:
    """Return the sizes of the outputs' named dimensions in a run."""
    sizes: dict[str, int] = {}
    for output in outputs:
        dims = output.type.tensor_type.shape.dim
        if output.name in arrays and len(dims) == arrays[output.name].ndim:
            pairs = zip(dims, arrays[output.name].shape, strict=True)
            sizes.update({dim.dim_param: size for dim, size in pairs if dim.dim_param})
    return sizes


def size_of(dim: onnx.TensorShapeProto.Dimension, sizes: Mapping[str, int]) -> int | None:
    """Return the size of a dimension in a run; None if it is not an expression of known names."""
    if dim.HasField("dim_value"):
        return dim.dim_value
    if not dim.dim_param or dim.dim_param in sizes:
        return sizes.get(dim.dim_param)
    try:
        return int(eval(dim.dim_param, {"__builtins__": {}}, {**_FUNCTIONS, **sizes}))
    except (NameError, SyntaxError, TypeError, ZeroDivisionError):
        return None


def is_wrong(info: onnx.ValueInfoProto, array: np.ndarray, sizes: Mapping[str, int]) -> bool:
    """Return whether a recorded type contradicts a tensor of a run.

    A size is not compared if it is unknown. A dtype is not compared if it is not a number or a
    boolean of NumPy.
    """
    tensor = info.type.tensor_type
    if tensor.elem_type and array.dtype.kind in "fiub":
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype != array.dtype and dtype.kind in "fiub":
            return True
    if not tensor.HasField("shape"):
        return False
    if len(tensor.shape.dim) != array.ndim:
        return True
    found = [size_of(dim, sizes) for dim in tensor.shape.dim]
    return any(
        size is not None and size != actual for size, actual in zip(found, array.shape, strict=True)
    )


def main(source: str, target: str, *results: str) -> None:
    runs = runs_of(onnx.load(source))
    wrong: dict[str, list[str]] = {}
    for result in results:
        infos = onnx.load(result).graph.value_info
        wrong[result] = sorted(
            {
                info.name
                for info in infos
                for sizes, arrays in runs
                if info.name in arrays and is_wrong(info, arrays[info.name], sizes)
            }
        )
    with open(target, "w", encoding="utf-8") as file:
        json.dump(wrong, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
