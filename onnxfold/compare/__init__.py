"""Comparing what two models compute.

`onnxfold.compare` is this package and also the public function of the same name: the package can
be called, so that `onnxfold.compare(a, b)` works whether or not the package was imported before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from onnxfold.compare.comparison import compare
from onnxfold.compare.result import Comparison, OutputResult

__all__ = ["Comparison", "OutputResult", "compare"]


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Comparison:
        """See `compare`."""
        return compare(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
