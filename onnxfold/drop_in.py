"""Functions that are called as those of onnxsim and onnxslim are, for programs that call these."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from onnxfold import storage
from onnxfold.api import optimize, optimize_file, with_sizes
from onnxfold.compare import compare
from onnxfold.options import named_shape, options_of
from onnxfold.storage import ModelLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from onnxfold.options import OptionArguments


def simplify(
    model: ModelLike,
    check_n: int = 0,
    *,
    overwrite_input_shapes: Mapping[str, Sequence[int]] | None = None,
    **options: Unpack[OptionArguments],
) -> tuple[onnx.ModelProto, bool]:
    """Optimize a model in memory, called as ``onnxsim.simplify`` is.

    Args:
        model: A path or a model (an ``onnx.ModelProto``, an ``ir.Model``, a
            ``torch.onnx.ONNXProgram``), which is left alone.
        check_n: On so many random inputs the result is compared with the model.
        overwrite_input_shapes: Shapes to give to inputs, by their name.
        options: See `onnxfold.options.Options`; onnxsim's own are not taken.

    Returns:
        The optimized model, and whether it computes the same (True without a check).

    Raises:
        OnnxFoldError: The model or an option is invalid.
    """
    if overwrite_input_shapes is not None:
        options["input_shapes"] = overwrite_input_shapes
    result = _as_proto(_optimized(model, options))
    if check_n == 0:
        return result, True
    rtol, atol = (1e-4, 1e-5) if options.get("level", 1) > 1 else (0.0, 0.0)
    original = with_sizes(model, options_of(options))
    return result, compare(original, result, seeds=check_n, rtol=rtol, atol=atol).passed


def slim(
    model: ModelLike,
    output_model: str | os.PathLike[str] | None = None,
    *,
    input_shapes: Sequence[str] | Mapping[str, Sequence[int]] | None = None,
    **options: Any,
) -> onnx.ModelProto | None:
    """Optimize a model, called as ``onnxslim.slim`` is.

    Args:
        model: A path or a model (an ``onnx.ModelProto``, an ``ir.Model``, a
            ``torch.onnx.ONNXProgram``), which is left alone.
        output_model: The file to write; nothing is returned then.
        input_shapes: Shapes to give to inputs: ``["x:1,3,224,224"]``, or sizes by name.
        options: See `onnxfold.options.Options`; onnxslim's own are not taken.

    Raises:
        OnnxFoldError: The model or an option is invalid.
    """
    if isinstance(input_shapes, Mapping):
        options["input_shapes"] = input_shapes
    elif input_shapes is not None:
        options["input_shapes"] = dict(map(named_shape, input_shapes))
    if output_model is None:
        return _as_proto(_optimized(model, options))
    if isinstance(model, (str, os.PathLike)):
        optimize_file(model, output_model, **options)
    else:
        result = _optimized(model, options)
        saved = result if isinstance(result, ir.Model) else storage.from_proto(result)
        storage.save(saved, output_model)
    return None


def _optimized(model: ModelLike, options: Mapping[str, Any]) -> ir.Model | onnx.ModelProto:
    """The optimized model; what was given is left alone."""
    given = storage.model_in(model)
    result: ir.Model | onnx.ModelProto = optimize(
        given.clone() if isinstance(given, ir.Model) else given, **options
    )
    return result


def _as_proto(model: ir.Model | onnx.ModelProto) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    return storage.to_proto(ir.external_data.load_to_model(model))
