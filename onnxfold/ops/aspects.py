"""Which aspects of ops are defined, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx

from onnxfold.ops.definition import Op, all_definitions, find
from onnxfold.ops.traits import ELEMENTWISE, WITHOUT_ARITHMETIC, Trait


class Aspects(NamedTuple):
    """The aspects of an op that its definition has; the others have the defaults of `Op`."""

    domain: str
    op_type: str
    shape: str
    """"onnxfold", "onnx" or "": who infers the results."""
    has_numpy_kernel: bool
    """Whether NumPy computes constants; otherwise onnxruntime does."""
    has_own_failures: bool
    """Whether it is known which elements of operands make the op fail."""
    has_own_cost: bool
    """Whether its operations are counted in its own way."""
    has_base: bool
    """Whether it can be computed on the bases of its operands, see `onnxfold.ops.bases`."""


def aspects() -> Iterator[Aspects]:
    """Yield the aspects of all ops that onnx defines, and of all other defined ops."""
    schemas = {
        (schema.domain, schema.name): schema
        for schema in onnx.defs.get_all_schemas()
        if not schema.deprecated
    }
    defined = {(definition.domain, definition.op_type) for definition in all_definitions()}
    for domain, op_type in sorted({*schemas, *defined}):
        definition = find(op_type, domain)
        cls = type(definition)
        has_shape = cls.shape is not Op.shape or Trait.LIKE_FIRST in definition.traits
        schema = schemas.get((domain, op_type))
        by_onnx = schema is not None and schema.has_type_and_shape_inference_function
        has_cost = cls.cost is not Op.cost or bool(definition.traits & WITHOUT_ARITHMETIC)
        yield Aspects(
            domain,
            op_type,
            "onnxfold" if has_shape else "onnx" if by_onnx else "",
            definition.kernel is not None,
            cls.can_fail is not Op.can_fail or Trait.READS_AT_FLOATS in definition.traits,
            has_cost,
            cls.on_bases is not Op.on_bases or bool(definition.traits & ELEMENTWISE),
        )
