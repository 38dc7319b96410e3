"""A list of all ops with the aspects that onnxfold defines, such as a shape or a cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx

from onnxfold.ops.definition import Op, all_definitions, find
from onnxfold.ops.traits import ELEMENTWISE, WITHOUT_ARITHMETIC, Trait


class Aspects(NamedTuple):
    """The aspects of an op that its definition contains. All others have the defaults of `Op`."""

    domain: str
    op_type: str
    shape: str
    """The package that infers the shapes of the results: "onnxfold", "onnx", or "" for none."""
    has_numpy_kernel: bool
    """Whether NumPy computes constants. onnxruntime computes them if NumPy is not exact."""
    has_own_failures: bool
    """Whether the definition has its own check for elements that make the op fail."""
    has_own_cost: bool
    """Whether the definition has its own count of operations."""
    has_base: bool
    """Whether the op can be computed on the bases of its operands; see `onnxfold.ops.bases`."""


def aspects() -> Iterator[Aspects]:
    """Yield the aspects of each op that onnx or onnxfold defines, sorted by domain and op type.

    Ops that are deprecated in onnx are omitted, unless onnxfold defines them.
    """
    schemas = {
        (schema.domain, schema.name): schema
        for schema in onnx.defs.get_all_schemas()
        if not schema.deprecated
    }
    defined = {(definition.domain, definition.op_type) for definition in all_definitions()}
    for domain, op_type in sorted({*schemas, *defined}):
        definition = find(op_type, domain)
        op_class = type(definition)
        has_shape = op_class.shape is not Op.shape or Trait.LIKE_FIRST in definition.traits
        schema = schemas.get((domain, op_type))
        by_onnx = schema is not None and schema.has_type_and_shape_inference_function
        inferred_by = "onnx" if by_onnx else ""
        if has_shape:
            inferred_by = "onnxfold"
        has_cost = op_class.cost is not Op.cost or bool(definition.traits & WITHOUT_ARITHMETIC)
        yield Aspects(
            domain,
            op_type,
            inferred_by,
            definition.kernel is not None,
            op_class.can_fail is not Op.can_fail or Trait.READS_AT_FLOATS in definition.traits,
            has_cost,
            op_class.on_bases is not Op.on_bases or bool(definition.traits & ELEMENTWISE),
        )
