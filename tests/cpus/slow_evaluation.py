"""A plugin of pytest: evaluations of constants may take the time that they take in an emulator."""

from onnxfold.fold import evaluation

_SLOWDOWN = 20  # of an emulated CPU, roughly
evaluation._LEAST_SECONDS *= _SLOWDOWN
