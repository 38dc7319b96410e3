"""The one door to onnxruntime and to onnx's reference evaluator."""
