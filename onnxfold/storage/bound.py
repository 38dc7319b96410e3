"""How many bytes a model takes in a file."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.errors import UsageError
from onnxfold.storage.layout import plan_model
from onnxfold.storage.load import BYTES_KEY, EXTERNAL_KEY


def model_bytes(model: ir.Model) -> int:
    """Return the length in bytes of the files that ``model`` was loaded from.

    Of a model that was given in memory, what it took serialized.
    """
    return int(model.meta[BYTES_KEY])


def planned_bytes(model: ir.Model) -> int:
    """Return the length in bytes of the files that saving ``model`` would write.

    Exact, from types and shapes alone: only tensors below a few KiB are read.

    Raises:
        ModelError: The model cannot be serialized.
    """
    if not model.meta.get(EXTERNAL_KEY):
        try:
            return plan_model(model).model("").size
        except UsageError:  # too large for one file
            pass
    plan = plan_model(model, lambda span: None)
    return plan.model("").size + (plan.data.size if plan.data is not None else 0)
