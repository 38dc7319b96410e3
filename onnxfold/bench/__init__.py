"""What onnxruntime makes of models, and how long they take it: measuring, printing is elsewhere."""
