"""Compiling with IREE, in a process of its own: the compiler can end the process it runs in.

``python -m onnxfold.runtime.backends.iree_child FOLDER FLAGS`` reads ``model.onnx`` and writes
``kernel.vmfb``; the flags are a JSON list. What went wrong goes to standard error. With ``dump``
behind them it writes ``stages/`` instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def compile_model(path: Path, flags: list[str]) -> bytes:
    """Compile a model to an IREE module."""
    from iree.compiler.api import Output, Session

    with Session() as session:
        invocation = _imported(session, path, flags)
        if not invocation.execute():
            raise SystemExit("IREE refuses the model")
        output = Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        return bytes(output.map_memory())


def dump_stages(path: Path, flags: list[str], folder: Path) -> None:
    """Write what becomes of a model on the way to a module."""
    from iree.compiler.api import Output, Session

    folder.mkdir()
    own = [flag for flag in flags if not flag.startswith("--iree-input-type")]
    kernels = folder / "5-kernels"
    own += ["--iree-input-type=auto", f"--iree-hal-dump-executable-files-to={kernels}"]
    with Session() as session:
        invocation = _imported(session, path, own)
        for name, pipeline in _STAGES.items():
            if pipeline and not invocation.execute_text_pass_pipeline(pipeline):
                raise SystemExit(f"IREE refuses the model on the way to {name}")
            output = Output.open_membuffer()
            invocation.output_ir(output)
            (folder / f"{name}.mlir").write_bytes(bytes(output.map_memory()))
        if not invocation.execute():
            raise SystemExit("IREE refuses the model")


# Pipelines from IREE's own input stage; "builtin.module(...)" around them would do nothing.
_STAGES = {
    "1-imported": "",
    "2-torch": "func.func(convert-torch-onnx-to-torch)",
    "3-lowered": "torch-lower-to-backend-contract,func.func(canonicalize,cse)",
    "4-linalg": "torch-to-iree",
}


def _imported(session: Any, path: Path, flags: list[str]) -> Any:
    import onnx
    from iree.compiler.extras import onnx_importer

    model = onnx.shape_inference.infer_shapes(onnx.load(str(path)), data_prop=True)
    try:
        session.set_flags(*flags)
    except ValueError as error:
        raise SystemExit(f"error: {' '.join(str(error).split())}") from error
    context = session.context
    context.load_all_available_dialects()
    info = onnx_importer.ModelInfo(model)
    module = info.create_module(context=context).operation
    onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    invocation = session.invocation()
    invocation.enable_console_diagnostics()
    invocation.import_module(module)
    return invocation


def main(folder: Path, flags: list[str], what: str = "compile") -> None:
    """Compile, or write the stages of compiling."""
    if what == "dump":
        dump_stages(folder / "model.onnx", flags, folder / "stages")
    else:
        (folder / "kernel.vmfb").write_bytes(compile_model(folder / "model.onnx", flags))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:])
