"""What a fold gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Folded:
    """Results of one fold: onnxruntime values by name, and the bytes they take."""

    values: Mapping[str, Any]
    nbytes: int
