"""The version of ONNX's opset in a model, also if the model imports only other opsets."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from onnxfold.support import files
from onnxfold.support.onnxruntime_sessions import open_session, session_options

ONNX_DOMAINS = ("", "ai.onnx")
"""The two names of the domain of ONNX's ops."""


@functools.cache
def assumed_opset() -> int:
    """Return the version that onnxruntime assumes for ONNX's opset if a model does not import it.

    This is the newest version that onnxruntime supports. onnxruntime has no function that returns
    this version, but writes it into models that onnxruntime saves.
    """
    operand = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "assumed", [operand], [result])
    imports = [onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=7)
    options = session_options(threads=1)
    with files.scratch_folder("opset") as folder:
        options.optimized_model_filepath = os.path.join(folder, "model.onnx")
        open_session(model.SerializeToString(), options)
        saved = onnx.load(options.optimized_model_filepath)
    versions = {entry.domain: int(entry.version) for entry in saved.opset_import}
    return versions[""]


def onnx_opset(imports: Mapping[str, int]) -> int:
    """Return the version of ONNX's opset in a model with these imports.

    If only other domains are imported, the result is the version that onnxruntime assumes. Without
    any imports, as in models of IR versions 1 and 2, the result is 1.
    """
    for domain in ONNX_DOMAINS:
        if domain in imports:
            return imports[domain]
    return assumed_opset() if imports else 1


def required_imports(model: ir.Model) -> dict[str, int]:
    """Return the imported opsets of a model, with ONNX's opset if nodes of the model require it.

    The version that onnxruntime assumes becomes explicit, because the model is optimized for this
    version. The result is empty for a model without any imports.
    """
    imports = dict(model.opset_imports)
    if not imports or not imports.keys().isdisjoint(ONNX_DOMAINS):
        return imports
    if any(node.domain in ONNX_DOMAINS for node in model.graph.all_nodes()):
        imports[""] = onnx_opset(imports)
    return imports


def import_onnx_opset(model: ir.Model) -> None:
    """Add the import of ONNX's opset to a model if its nodes require it; see `required_imports`."""
    model.opset_imports.update(required_imports(model))
