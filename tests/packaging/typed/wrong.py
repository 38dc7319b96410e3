"""Each line marked as wrong has one mistake, which type checkers find. The file never runs."""

from pathlib import Path

import onnx

import onnxfold
from onnxfold.tools.bench.side_by_side import bench_models

path = Path("in.onnx")
proto = onnx.load("in.onnx")

# names
onnxfold.optimise("in.onnx")  # wrong
onnxfold.optimize("in.onnx", levl=2)  # wrong
onnxfold.optimize("in.onnx", output="out.onnx")  # wrong
onnxfold.optimize_file("in.onnx", "out.onnx", external_dat=True)  # wrong
onnxfold.optimize_file("in.onnx", "out.onnx", checks=3)  # wrong
onnxfold.plan("in.onnx", memory=1)  # wrong
onnxfold.explain("in.onnx", check=1)  # wrong
onnxfold.why("in.onnx", "y", node="y")  # wrong
onnxfold.batch("models", "out", worker=2)  # wrong
onnxfold.compare("a.onnx", "b.onnx", provider=["CPUExecutionProvider"])  # wrong
onnxfold.split("in.onnx", "out", runtime_const=["x"])  # wrong
onnxfold.Session("bundle", max_cache_byte=1)  # wrong
onnxfold.InferenceSession("in.onnx", levl=2)  # wrong
onnxfold.FoldCache("folder", bytes=1)  # wrong
onnxfold.load("in.onnx", external_dat=True)  # wrong
onnxfold.save(onnxfold.load(path), "out.onnx", thread=1)  # wrong
onnxfold.simplify(proto, check_m=3)  # wrong
onnxfold.slim("in.onnx", model_chek=True)  # wrong
bench_models(["a.onnx"], round=3)  # wrong

# values
onnxfold.optimize("in.onnx", level=3)  # wrong
onnxfold.optimize("in.onnx", level="2")  # wrong
onnxfold.optimize("in.onnx", precision="double")  # wrong
onnxfold.optimize("in.onnx", target=["tensorrt"])  # wrong
onnxfold.optimize("in.onnx", keep=3)  # wrong
onnxfold.optimize("in.onnx", dims={"batch": "1"})  # wrong
onnxfold.optimize("in.onnx", rules=[3])  # wrong
onnxfold.optimize("in.onnx", check="3")  # wrong
onnxfold.optimize("in.onnx", custom_ops=[1])  # wrong
onnxfold.optimize(3)  # wrong
onnxfold.optimize_file("in.onnx")  # wrong
onnxfold.optimize_file("in.onnx", "out.onnx", progress=3)  # wrong
onnxfold.compare("a.onnx", "b.onnx", rtol="1e-3")  # wrong
onnxfold.compare("a.onnx", 3)  # wrong
onnxfold.split("in.onnx", "out", fold_at="never")  # wrong
onnxfold.Session("bundle", cache="folder")  # wrong
onnxfold.InferenceSession("in.onnx", level=3)  # wrong
onnxfold.InferenceSession(3)  # wrong
onnxfold.simplify(proto, input_shapes={"x": ["a"]})  # wrong
onnxfold.slim("in.onnx", level=3)  # wrong
bytes_of_a_path: bytes = onnxfold.optimize(path)  # wrong
count: int = onnxfold.compare("a.onnx", "b.onnx").equal.nothing  # wrong
