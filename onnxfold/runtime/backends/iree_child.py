"""Compiling with IREE, in a process of its own: the compiler can end the process it runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.runtime.backends.base import CompileError


def compile_model(request: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Compile a serialized model, by "flags", to an IREE module."""
    from iree.compiler.api import Output, Session

    with Session() as session:
        invocation = _imported(session, arrays[0].tobytes(), request["flags"])
        if not invocation.execute():
            raise CompileError("IREE refuses the model")
        output = Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        return None, [np.frombuffer(bytes(output.map_memory()), np.uint8)]


def dump_stages(request: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Write what becomes of a serialized model on the way to a module into "folder"."""
    from iree.compiler.api import Output, Session

    folder = Path(request["folder"])
    own = [flag for flag in request["flags"] if not flag.startswith("--iree-input-type")]
    kernels = folder / "5-kernels"
    own += ["--iree-input-type=auto", f"--iree-hal-dump-executable-files-to={kernels}"]
    with Session() as session:
        invocation = _imported(session, arrays[0].tobytes(), own)
        for name, pipeline in _STAGES.items():
            if pipeline and not invocation.execute_text_pass_pipeline(pipeline):
                raise CompileError(f"IREE refuses the model on the way to {name}")
            output = Output.open_membuffer()
            invocation.output_ir(output)
            (folder / f"{name}.mlir").write_bytes(bytes(output.map_memory()))
        if not invocation.execute():
            raise CompileError("IREE refuses the model")
    return None, []


# Pipelines from IREE's own input stage; "builtin.module(...)" around them would do nothing.
_STAGES = {
    "1-imported": "",
    "2-torch": "func.func(convert-torch-onnx-to-torch)",
    "3-lowered": "torch-lower-to-backend-contract,func.func(canonicalize,cse)",
    "4-linalg": "torch-to-iree",
}


def _imported(session: Any, content: bytes, flags: list[str]) -> Any:
    import onnx
    from iree.compiler.extras import onnx_importer

    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(content), data_prop=True)
    try:
        session.set_flags(*flags)
    except ValueError as error:
        raise CompileError(" ".join(str(error).split())) from error
    context = session.context
    context.load_all_available_dialects()
    info = onnx_importer.ModelInfo(model)
    module = info.create_module(context=context).operation
    onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    invocation = session.invocation()
    invocation.enable_console_diagnostics()
    invocation.import_module(module)
    return invocation
