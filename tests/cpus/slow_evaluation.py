"""A plugin of pytest for emulated CPUs.

Evaluations of constants may take the time that they take in an emulator. The rules are loaded
first: the package is not installed there, so the first access finds them beside it.
"""

from onnxfold.fold import evaluation
from onnxfold.rewrite.rule import builtin_rule_sets

_SLOWDOWN = 20  # of an emulated CPU, roughly
evaluation._LEAST_SECONDS *= _SLOWDOWN
builtin_rule_sets()
