"""Read adapters from files.

A file is .safetensors (with the configuration of peft in its folder), .npz or .onnx_adapter.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnxfold.support.errors import ModelError, UsageError
from onnxfold.support.onnxruntime_sessions import Array, Feed

_TYPES: dict[str, Any] = {
    **{f"{k}{n}": np.dtype(f"{k.lower()}{n // 8}") for k in "FIU" for n in (16, 32, 64)},
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
"""Element types by their names in safetensors."""


@dataclass(frozen=True)
class Adapter:
    """An adapter: tensors by name, its file unless it is the caller's, and its configuration."""

    tensors: Mapping[str, Feed]
    file: Path | None = None
    config: LoraConfig | None = None


@dataclass(frozen=True)
class LoraConfig:
    """The configuration of a LoRA in peft: the factor of the product of its two matrices. ``alpha``
    is the numerator, ``alphas`` has others by the end of a module's name, and ``by_root`` says that
    the denominator is the square root of the rank instead of the rank.
    """

    alpha: float
    alphas: Mapping[str, float]
    by_root: bool = False

    def scale(self, module: str, rank: int) -> float:
        """Return the factor for a module with an adapter of this rank; the first pattern counts."""
        own = (a for name, a in self.alphas.items() if f".{module}".endswith(f".{name}"))
        alpha = next(own, self.alpha)
        return alpha / (math.sqrt(rank) if self.by_root else rank) if rank else 1.0


def read_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Read an adapter from a file or from a folder that peft has written. A UsageError says that
    the kind of file is unknown, a ModelError that it is damaged or cannot be read.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "adapter_model.safetensors"
    readers = {".safetensors": _safetensors, ".npz": _npz, ".onnx_adapter": _onnx_adapter}
    read = readers.get(file.suffix)
    if read is None:
        raise UsageError(f"an adapter is one of {', '.join(readers)}, or peft's folder", file=file)
    try:
        config = file.with_name("adapter_config.json")
        is_scaled = file.suffix == ".onnx_adapter" or not config.is_file()
        return Adapter(read(file), file, None if is_scaled else _config(config))
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", file=file) from error


def _safetensors(file: Path) -> dict[str, Array]:
    try:
        import safetensors
    except ImportError:
        reason = "reading it needs safetensors: pip install 'onnxfold[adapters]'"
        raise UsageError(reason, file=file) from None
    try:
        entries = safetensors.deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ModelError(f"damaged: {error}", file=file) from None
    arrays = {}
    for name, entry in entries:
        dtype = _TYPES.get(entry["dtype"])
        if dtype is None:
            raise ModelError(f"{name!r} is of type {entry['dtype']}, which ONNX has not", file=file)
        arrays[name] = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return arrays


def _npz(file: Path) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except OSError:
        raise
    except Exception:  # NumPy, zipfile and zlib raise many classes
        raise ModelError("not an .npz file, or damaged", file=file) from None


def _onnx_adapter(file: Path) -> dict[str, Feed]:
    import onnxruntime as ort

    with file.open("rb"):  # the error of onnxruntime for a missing file is less clear
        pass
    try:
        adapter = ort.AdapterFormat.read_adapter(str(file))
        values = dict(adapter.get_parameters())
    except Exception as error:  # the exceptions of onnxruntime have no common base class
        raise ModelError(f"onnxruntime does not read it: {error}", file=file) from error
    for value in values.values():
        value.adapter = adapter  # owns the memory; older versions of onnxruntime do not keep it
    return values


def _config(file: Path) -> LoraConfig:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("peft_type", "LORA") != "LORA":
            raise UsageError(f"{document['peft_type']!r} is no LoRA", file=file)
        alphas = {str(k): float(v) for k, v in (document.get("alpha_pattern") or {}).items()}
        config = LoraConfig(float(document["lora_alpha"]), alphas, bool(document.get("use_rslora")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"damaged: {error!r}", file=file) from None
    for name in alphas:
        if re.fullmatch(r"[\w.]+", name) is None:
            reason = f"alpha_pattern {name!r}: only names are read, not expressions"
            raise UsageError(reason, file=file)
    return config
