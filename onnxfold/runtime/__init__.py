"""Runtime constants: split a model by constness, and run both parts."""
