"""Replacements of `onnxsim.simplify` and `onnxslim.slim` with the same signatures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.api.optimize import optimize, optimize_file, with_sizes
from onnxfold.api.options import CheckedOptionArguments, OptionArguments, named_shape, options_of
from onnxfold.api.signatures import checked
from onnxfold.ir import storage
from onnxfold.ir.graphs import name_of
from onnxfold.ir.storage import ModelLike
from onnxfold.passes import create
from onnxfold.passes.shapes.fixed_dims import fix_dims
from onnxfold.support.errors import UsageError, about
from onnxfold.tools.comparison import compare

if TYPE_CHECKING:
    from typing_extensions import Unpack

Shapes = Mapping[str, Sequence[int]]


_IGNORED_KEYWORDS = {
    "simplify": """skip_fuse_bn skipped_optimizers extra_optimizers skip_constant_folding
        skip_shape_inference dynamic_input_shape include_subgraph unused_output
        tensor_size_threshold mutable_initializer target_opset_version initializers_as_constants
        import_custom_schemas custom_rewriter input_fill function_rewrite_rules providers
        gemm_fusion_backend profile ort_profile merge_ort_profile external_data_threshold range_opt
        certify check_hazards check_gradients gradient_precision""",
    "slim": """inputs outputs no_shape_infer skip_optimizations skip_fusion_patterns
        size_threshold inspect dump_to_disk verbose""",
}
"""Keywords of ``onnxsim.simplify`` and ``onnxslim.slim`` that have no effect in onnxfold."""


@checked
def simplify(
    model: ModelLike,
    check_n: int = 0,
    perform_optimization: bool = True,
    *,
    overwrite_input_shapes: Shapes | None = None,
    test_input_shapes: Shapes | None = None,
    input_data: Mapping[str, Any] | None = None,
    check_rtol: float | None = None,
    check_atol: float | None = None,
    custom_lib: str | None = None,
    inline_functions: bool = False,
    output_path: str | os.PathLike[str] | None = None,
    **arguments: Unpack[OptionArguments],
) -> tuple[onnx.ModelProto, bool]:
    """Optimize a model in memory, with the signature of ``onnxsim.simplify``.

    Args:
        model: A path or a model, which does not change.
        check_n: Number of random inputs on which the result is compared with the model.
        perform_optimization: False selects level 0, which only folds constants, unless ``level`` is
            given.
        overwrite_input_shapes: Shapes to fix in the result, by name of the input.
        test_input_shapes: Shapes of the inputs in the comparison, by name.
        input_data: Inputs for the comparison instead of random ones, by name. They enable the
            comparison even if ``check_n`` is 0.
        check_rtol: Relative tolerance of the comparison. If neither tolerance is given, all bits
            must be equal. At level 2 and with wide precision, the tolerances of inexact rules
            apply instead.
        check_atol: Absolute tolerance of the comparison.
        custom_lib: Shared library with custom ops of the model, for the comparison.
        inline_functions: Inline the model's functions first.
        output_path: File to which the result is also written.
        arguments: See `onnxfold.api.options.OptionArguments`. Other keywords of
            ``onnxsim.simplify`` have no effect and cause a warning.

    Returns:
        The optimized model, and whether its outputs are equal to those of the original or within
        the tolerances (True without a comparison).

    Raises:
        OnnxFoldError: The model or an option is invalid, or ``output_path`` cannot be written.
    """
    options = _without_ignored(arguments, "simplify")
    if not perform_optimization:
        options.setdefault("level", 0)
    if overwrite_input_shapes is not None:
        options["input_shapes"] = overwrite_input_shapes
    source = model
    if inline_functions:
        source = storage.opened(model)
        create("inline-functions")(source)
    result = _optimized(source, options)
    if output_path is not None:
        storage.save(storage.from_proto(result), output_path)
    if check_n == 0 and input_data is None:
        return result, True
    parsed = options_of(options, OptionArguments)
    is_inexact = parsed.level > 1 or parsed.precision == "wide"
    comparison = compare(
        with_sizes(model, parsed),
        result,
        seeds=max(1, check_n),
        feeds=input_data,
        dims=_dynamic_sizes(result, test_input_shapes) if test_input_shapes else {},
        rtol=check_rtol or 0.0,
        atol=check_atol or 0.0,
        inexact=is_inexact and check_rtol is check_atol is None,
        custom_ops=[custom_lib] if custom_lib else [],
    )
    return result, comparison.passed


@checked
def slim(
    model: ModelLike,
    output_model: str | os.PathLike[str] | None = None,
    *,
    model_check: bool = False,
    model_check_inputs: Sequence[str] | None = None,
    save_as_external_data: bool = False,
    **arguments: Unpack[CheckedOptionArguments],
) -> onnx.ModelProto | None:
    """Optimize a model, with the signature of ``onnxslim.slim``.

    Args:
        model: A path or a model, which does not change.
        output_model: The file to write. With None, the result is returned.
        model_check: Compare the result with the model on a random input.
        model_check_inputs: Inputs of the comparison, which they also enable: ``["x:data.npy"]`` for
            arrays, or ``["x:1,3,224,224"]`` for shapes.
        save_as_external_data: Write weights to a separate file. False selects the format of the
            source.
        arguments: See `onnxfold.api.options.CheckedOptionArguments`. Other keywords of
            ``onnxslim.slim`` have no effect and cause a warning.

    Returns:
        The optimized model, or None if ``output_model`` is given.

    Raises:
        CheckFailedError: The check of the result failed, see `onnxfold.optimize`.
        OnnxFoldError: The model or an option is invalid, ``output_model`` cannot be written, or
            ``dtype`` is given, because onnxfold does not convert dtypes.
    """
    options: dict[str, Any] = dict(arguments)
    if options.pop("dtype", None) is not None:
        converter = "onnxruntime.transformers.float16.convert_float_to_float16"
        remedy = f"convert the model before, for example by {converter}"
        raise UsageError(f"dtype: onnxfold does not convert dtypes; {remedy}")
    options = _without_ignored(options, "slim")
    if model_check:
        options.setdefault("check", 1)
    pairs = [text.rpartition(":")[::2] for text in model_check_inputs or ()]
    if pairs and all(value.endswith(".npy") for _, value in pairs):
        try:
            options["feeds"] = {name: np.load(value) for name, value in pairs}
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(f"cannot read the inputs of the check: {error}") from error
    elif pairs:
        shapes = dict(map(named_shape, model_check_inputs or ()))
        options["check_dims"] = _dynamic_sizes(model, shapes)
    if output_model is None:
        return _optimized(model, options)
    optimize_file(model, output_model, external_data=save_as_external_data or None, **options)
    return None


def _without_ignored(arguments: Mapping[str, Any], function: str) -> dict[str, Any]:
    """Return the arguments that have an effect, and warn about ignored ones that are set.

    An argument is set if it is neither None nor False.
    """
    ignored = sorted(arguments.keys() & set(_IGNORED_KEYWORDS[function].split()))
    if any(arguments[name] not in (None, False) for name in ignored):
        warnings.warn(f"no effect in onnxfold: {', '.join(ignored)}", stacklevel=4)
    return {name: value for name, value in arguments.items() if name not in ignored}


def _dynamic_sizes(model: ModelLike, shapes: Shapes) -> dict[str, int]:
    """Return the sizes of dynamic dimensions, by name, for the shapes of inputs.

    Dimension 0 of an input ``x`` is named ``x[0]`` if it has no name. A size of -1 is omitted.

    Raises:
        UsageError: A shape contradicts the declared shape of an input, or the input does not exist.
    """
    sizes = {}
    opened = storage.opened(model)
    declared = {value.name: list(value.shape or ()) for value in opened.graph.inputs}
    with about(storage.path_of(model)):
        fix_dims(opened, {}, shapes)
    for name, shape in shapes.items():
        for axis, (dim, size) in enumerate(zip(declared[name], shape, strict=False)):
            if isinstance(dim, ir.SymbolicDim) and size != -1:
                sizes[name_of(dim) or f"{name}[{axis}]"] = size
    return sizes


def _optimized(model: ModelLike, options: Mapping[str, Any]) -> onnx.ModelProto:
    """Return the optimized model with all weights in memory. The argument does not change."""
    source = storage.model_in(model)
    if isinstance(source, ir.Model):
        source = storage.opened(source)
    result: ir.Model | onnx.ModelProto = optimize(source, **options)
    if isinstance(result, onnx.ModelProto):
        return result
    return storage.to_proto(ir.external_data.load_to_model(result))
