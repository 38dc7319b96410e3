"""Runtime constants: splitting a model by constness, and running what came of it."""
