"""What users name and order: one pass a file, each an ``onnx_ir`` pass, made by name.

>>> from onnxfold import passes
>>> passes.create("constant-propagation")(model)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

__all__ = ["all_passes", "create"]


def __getattr__(name: str) -> Any:
    # the registry needs the options, and they the rules: only for those who ask for a pass by name
    if name in __all__:
        from onnxfold.passes import registry

        return getattr(registry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
