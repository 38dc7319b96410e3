"""Remove metadata of tools from a model."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass

from onnxfold.passes.shapes import fixed_dims


class ClearMetadata(ClearMetadataAndDocStringPass):
    """Remove metadata and doc strings of graphs and nodes, and onnxfold's metadata of the model.

    Other metadata of the model stays, as applications read it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        removed = model.metadata_props.pop(fixed_dims.KEY, None)
        return ir.passes.PassResult(model, super().call(model).modified or removed is not None)
