"""A pytest plugin that extends the time limits of evaluations on emulated CPUs.

The plugin also loads the rules. The environments of emulated CPUs may not contain the package, so
the first call of `builtin_rule_sets` adds the checkout's `rules` folder to the package.
"""

from onnxfold.fold import evaluation
from onnxfold.rewrite.rule import builtin_rule_sets

_SLOWDOWN = 20  # approximate slowdown of an emulated CPU
evaluation._MIN_SECONDS *= _SLOWDOWN
builtin_rule_sets()
