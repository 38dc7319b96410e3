"""Read adapters from .safetensors, .npz and .onnx_adapter files.

If the folder of a .safetensors or .npz file contains ``adapter_config.json``, which peft writes,
this configuration is also read.
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
"""Dtypes of NumPy and ml_dtypes, by the names of element types in .safetensors files."""


@dataclass(frozen=True)
class Adapter:
    """The tensors of an adapter, and its configuration.

    Attributes:
        tensors: The tensors by name.
        file: The file of the tensors. None if the caller passed the tensors.
        config: The configuration that peft wrote. None if no configuration was read.
    """

    tensors: Mapping[str, Feed]
    file: Path | None = None
    config: LoraConfig | None = None


@dataclass(frozen=True)
class LoraConfig:
    """The scale of a LoRA adapter in a configuration of peft.

    For each module, peft multiplies the product of the adapter's two matrices by this scale.

    Attributes:
        alpha: The numerator of the scale.
        alphas: The numerators for some modules, by the last components of the module's name.
        is_rank_stabilized: Whether the denominator is the square root of the rank instead of the
            rank.
    """

    alpha: float
    alphas: Mapping[str, float]
    is_rank_stabilized: bool = False

    def scale(self, module: str, rank: int) -> float:
        """Return the scale for a module whose adapter has this rank.

        The first entry of ``alphas`` that matches the module replaces ``alpha``. The scale for the
        rank 0 is 1.
        """
        matches = (a for name, a in self.alphas.items() if f".{module}".endswith(f".{name}"))
        alpha = next(matches, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank) if rank else 1.0


def read_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Read an adapter from a file, or from ``adapter_model.safetensors`` in a folder of peft.

    Raises:
        UsageError: The kind of the file or of the adapter is not supported, safetensors is not
            installed, or the configuration contains a regular expression.
        ModelError: A file is damaged, cannot be read, or has a tensor of an unsupported dtype.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "adapter_model.safetensors"
    readers = {".safetensors": _safetensors, ".npz": _npz, ".onnx_adapter": _onnx_adapter}
    read = readers.get(file.suffix)
    if read is None:
        reason = f"expected a file with the suffix {', '.join(readers)}, or a folder of peft"
        raise UsageError(f"unknown kind of adapter: {reason}", file=file)
    try:
        config = file.with_name("adapter_config.json")
        has_config = file.suffix != ".onnx_adapter" and config.is_file()
        return Adapter(read(file), file, _config(config) if has_config else None)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", file=file) from error


def _safetensors(file: Path) -> dict[str, Array]:
    try:
        import safetensors
    except ImportError:
        reason = "reading the file requires safetensors: pip install 'onnxfold[adapters]'"
        raise UsageError(reason, file=file) from None
    try:
        entries = safetensors.deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ModelError(f"damaged: {error}", file=file) from None
    arrays = {}
    for name, entry in entries:
        dtype = _TYPES.get(entry["dtype"])
        if dtype is None:
            reason = f"{name!r} has the dtype {entry['dtype']}, which is not supported"
            raise ModelError(reason, file=file)
        arrays[name] = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return arrays


def _npz(file: Path) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except OSError:
        raise
    except Exception:  # NumPy, zipfile and zlib raise many classes of exceptions
        raise ModelError("not an .npz file, or damaged", file=file) from None


def _onnx_adapter(file: Path) -> dict[str, Feed]:
    import onnxruntime as ort

    with file.open("rb"):  # onnxruntime's message about a missing file is less clear
        pass
    try:
        adapter = ort.AdapterFormat.read_adapter(str(file))
        values = dict(adapter.get_parameters())
    except Exception as error:  # the exceptions of onnxruntime have no common base class
        raise ModelError(f"onnxruntime cannot read the file: {error}", file=file) from error
    for value in values.values():
        # The adapter owns the memory of the values. In older versions of onnxruntime, the values
        # do not keep the adapter alive.
        value.adapter = adapter
    return values


def _config(file: Path) -> LoraConfig:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("peft_type", "LORA") != "LORA":
            reason = f"peft_type {document['peft_type']!r} is not supported, only 'LORA'"
            raise UsageError(reason, file=file)
        alphas = {str(k): float(v) for k, v in (document.get("alpha_pattern") or {}).items()}
        config = LoraConfig(float(document["lora_alpha"]), alphas, bool(document.get("use_rslora")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"damaged: {error!r}", file=file) from None
    for name in alphas:
        if re.fullmatch(r"[\w.]+", name) is None:
            reason = f"alpha_pattern {name!r}: regular expressions are not supported, only names"
            raise UsageError(reason, file=file)
    return config
