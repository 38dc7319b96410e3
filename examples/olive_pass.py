"""Run onnxfold as a pass of Olive, here before Olive's quantization.

Needs Olive: pip install olive-ai onnxruntime requests
"""

import json
from pathlib import Path

import onnx
from olive.hardware import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam
from olive.workflows import run

import onnxfold


class Onnxfold(Pass):
    """Optimize the model and compare the result with the original."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            "check": PassConfigParam(type_=int, default_value=1, description="Runs to compare"),
            "options": PassConfigParam(type_=dict, default_value={}, description="Options"),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        path = Path(resolve_onnx_path(output_model_path))
        onnxfold.optimize_file(model.model_path, path, check=config.check, **config.options)
        # The folder of the model may also contain its data file.
        return ONNXModelHandler(model_path=str(path.parent), onnx_file_name=path.name)


# Olive's table of passes with an entry for this pass.
PASSES = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text())
PASSES["passes"]["Onnxfold"] = {
    "module_path": "olive_pass.Onnxfold",
    "supported_providers": ["*"],
    "supported_accelerators": ["*"],
    "supported_precisions": ["*"],
}

if __name__ == "__main__":
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": "models/swin.onnx"},
        "passes": {
            "fold": {"type": "Onnxfold", "options": {"level": 1}},
            "quantize": {"type": "OnnxDynamicQuantization"},
        },
        "output_dir": "olive",
    }
    run(workflow, package_config=PASSES)
    nodes = [len(onnx.load(name).graph.node) for name in ("models/swin.onnx", "olive/model.onnx")]
    print("nodes:", *nodes)
