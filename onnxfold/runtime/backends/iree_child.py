"""Compiling with IREE, in a process of its own: the compiler can end the process it runs in.

``python -m onnxfold.runtime.backends.iree_child FOLDER`` reads ``model.onnx``, ``flags.json`` and,
if there are any, ``feeds.npz``; it writes ``kernel.vmfb`` and ``results.npz``. What went wrong goes
to standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def compile_model(path: Path, flags: list[str]) -> bytes:
    """Compile a model to an IREE module."""
    import onnx
    from iree.compiler.api import Output, Session
    from iree.compiler.extras import onnx_importer

    model = onnx.shape_inference.infer_shapes(onnx.load(str(path)), data_prop=True)
    with Session() as session:
        session.set_flags(*flags)
        context = session.context
        context.load_all_available_dialects()
        info = onnx_importer.ModelInfo(model)
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        invocation = session.invocation()
        invocation.enable_console_diagnostics()
        invocation.import_module(module)
        if not invocation.execute():
            raise SystemExit("IREE refuses the model")
        output = Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())


def try_kernel(content: bytes, function: str, feeds: dict[str, Any]) -> list[Any]:
    """Results of the kernel on feeds in the order of its inputs."""
    from onnxfold.runtime.backends.iree_module import Module

    return Module(content, function)(list(feeds.values()))


def main(folder: Path) -> None:
    """Compile, and try what came of it."""
    content = compile_model(folder / "model.onnx", json.loads((folder / "flags.json").read_text()))
    (folder / "kernel.vmfb").write_bytes(content)
    feeds_file = folder / "feeds.npz"
    if feeds_file.exists():
        with np.load(feeds_file) as stored:
            feeds = {name: stored[name] for name in stored.files}
        results = try_kernel(content, "fold", feeds)
        np.savez(folder / "results.npz", *results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
