"""A folder with the graph after each pass, as text without large tensors and as a drawing."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxfold import storage
from onnxfold.dump.dot import dot_of
from onnxfold.errors import UsageError, option, printable
from onnxfold.files import os_error
from onnxfold.graphs import all_graphs, type_text
from onnxfold.onnx_ir_private import is_a
from onnxfold.pool import BufferTensor
from onnxfold.storage.encode import to_proto

_MOST_CHANGES = 400  # lines
_SMALL = 128  # bytes of a tensor whose elements are written


class Dump:
    """Write the model after each pass; an `onnxfold.passes.context.Observer`.

    ``00-source.txt`` and ``.dot`` are the model as it came. A pass that changed something adds the
    same two with the next number and its name, and ``.diff`` with the lines that it changed.
    ``dot -Tsvg -O DIR/*.dot`` of Graphviz draws them.

    Args:
        folder: Where to write. It is made if it is not there, and must be empty.
        model: The model as it came.

    Raises:
        UsageError: The folder is not empty.
        OnnxFoldError: It cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], model: ir.Model) -> None:
        self._folder = Path(folder)
        self._title = ""
        self._count = 0
        self._model: ir.Model | None = None
        self._lines: list[str] = []
        try:
            if self._folder.exists() and any(self._folder.iterdir()):
                raise UsageError(
                    f"{option('dump_ir')} must be a new folder or an empty one", file=folder
                )
        except OSError as error:
            raise os_error(error, os.fspath(folder)) from error
        self.passed("source", model)

    def passed(self, name: str, model: ir.Model) -> None:
        """Write the model after a pass that changed it.

        Raises:
            OnnxFoldError: The folder cannot be written.
        """
        text = _text_of(model)
        before, self._lines = self._lines, _lines_of(model, text)
        if model is not self._model:  # the first one, or the run starts again with fewer rules
            before, self._model, name = [], model, "source"
        if before == self._lines:
            return
        old, self._title = self._title, f"{self._count:02}-{name}"
        self._count += 1
        texts = {"txt": text, "dot": dot_of(model, self._title)}
        if before:
            titles = old, self._title
            changes = list(difflib.unified_diff(before, self._lines, *titles, n=0, lineterm=""))
            if len(changes) > _MOST_CHANGES:
                more = len(changes) - _MOST_CHANGES
                changes[_MOST_CHANGES:] = [f"... {more:,} more lines"]
            texts["diff"] = "\n".join([*changes, ""])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for kind, text in texts.items():
                path = self._folder / f"{self._title}.{kind}"
                path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        except OSError as error:
            raise os_error(error, str(self._folder)) from error


def _text_of(model: ir.Model) -> str:
    """Return the model as onnx prints it. Of larger tensors there are type, shape and bytes only.

    No large tensor is read, and nothing is computed that is postponed.

    Raises:
        ModelError: The model cannot be expressed.
    """
    try:
        return str(onnx.printer.to_text(to_proto(model, _leave_out)))
    except UnicodeDecodeError as error:  # strings in attributes may be any bytes
        return error.object.decode("utf-8", "backslashreplace")


def _leave_out(tensor: ir.TensorProtocol, is_attribute: bool, proto: onnx.TensorProto) -> bool:
    if tensor.dtype == ir.DataType.STRING:
        return False  # a tensor in memory without bytes of its own
    nbytes = storage.data_bytes(tensor.dtype, tensor.shape)
    is_known = not is_a(tensor, BufferTensor) or tensor.buffer.is_known
    if nbytes <= _SMALL and is_known:
        return False
    proto.data_location = onnx.TensorProto.EXTERNAL
    proto.external_data.add(key="left_out", value=f"{nbytes} bytes")
    return True


def _lines_of(model: ir.Model, text: str) -> list[str]:
    """Weights, then the lines of the model's text; onnx prints all weights in one line."""
    weights = sorted(
        f"weight {value.name} {type_text(value)}"
        for graph in all_graphs(model)
        for value in graph.initializers.values()
    )
    lines = (line for line in text.split("\n") if not line.lstrip().startswith("<"))
    return [*map(printable, weights), *map(printable, lines)]
