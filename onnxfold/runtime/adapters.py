"""Adapters in files: reading them, and which runtime constants their tensors are.

A file is .safetensors (with peft's configuration beside it), .npz or .onnx_adapter.
"""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnxfold.comparison.metrics import is_float
from onnxfold.errors import ModelError, UsageError
from onnxfold.onnxruntime_sessions import Array, Feed, numpy_name
from onnxfold.runtime.bundles.manifest import Manifest, TensorInfo, Weight

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
"""What peft calls an adapter's two files."""

_TYPES: dict[str, Any] = {
    **{f"{k}{n}": np.dtype(f"{k.lower()}{n // 8}") for k in "FIU" for n in (16, 32, 64)},
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
"""Element types as safetensors calls them."""

_Parts = tuple[str, ...]

# peft puts this in front of the names of a model's modules.
_WRAPPER = re.compile(r"(^|\.)base_model\.model\.")
# Behind these comes the name of the adapter, which its file leaves out.
_NAMED = re.compile(r"\.(lora(?:_embedding)?_[AB]|modules_to_save)\.[^.]+(?=\.)")


@dataclass(frozen=True)
class Adapter:
    """An adapter as it is in its file.

    Attributes:
        tensors: By the names that they have there.
        file: Where it was read from; None if the caller has brought it.
        config: How strong it is; None if nothing says so.
    """

    tensors: Mapping[str, Feed]
    file: Path | None = None
    config: LoraConfig | None = None


@dataclass(frozen=True)
class LoraConfig:
    """peft's configuration of a LoRA: what the product of its factors is multiplied by.

    Attributes:
        alpha: The numerator.
        alphas: Other ones, by the end of a module's name.
        by_root: Whether the denominator is the square root of the rank, not the rank.
    """

    alpha: float
    alphas: Mapping[str, float]
    by_root: bool = False

    def scale(self, module: str, rank: int) -> float:
        """Return the factor for a module whose adapter has that rank; the first pattern counts."""
        own = (a for name, a in self.alphas.items() if f".{module}".endswith(f".{name}"))
        alpha = next(own, self.alpha)
        return alpha / (math.sqrt(rank) if self.by_root else rank) if rank else 1.0


def read_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Read an adapter: a file, or the folder that peft has written.

    Raises:
        UsageError: It is of no kind that is known.
        ModelError: It is damaged, or cannot be read.
    """
    file = Path(path)
    if file.is_dir():
        file = file / WEIGHTS
    readers = {".safetensors": _safetensors, ".npz": _npz, ".onnx_adapter": _onnx_adapter}
    read = readers.get(file.suffix)
    if read is None:
        raise UsageError(f"an adapter is one of {', '.join(readers)}, or peft's folder", file=file)
    try:
        config = file.with_name(CONFIG)
        return Adapter(read(file), file, _config(config) if config.is_file() else None)
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
    except (ValueError, EOFError, zipfile.BadZipFile):
        raise ModelError("not an .npz file, or damaged", file=file) from None


def _onnx_adapter(file: Path) -> dict[str, Feed]:
    import onnxruntime as ort

    with file.open("rb"):  # onnxruntime says less about a file that is not there
        pass
    try:
        adapter = ort.AdapterFormat.read_adapter(str(file))
        values = dict(adapter.get_parameters())
    except Exception as error:  # onnxruntime raises many classes without a common base
        raise ModelError(f"onnxruntime does not read it: {error}", file=file) from error
    for value in values.values():
        value.adapter = adapter  # whose memory it is: older versions of onnxruntime do not keep it
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


@dataclass(frozen=True)
class Fit:
    """What becomes of one tensor of an adapter.

    Attributes:
        tensor: Its name.
        shape: Its shape, as it is in the file.
        constant: The runtime constant that it is; None if there is none.
        transposed: Whether it is the transpose of that.
        factor: What it is multiplied by, so that the adapter is as strong as it says.
        problem: Why it does not fit; None if it does.
    """

    tensor: str
    shape: tuple[int, ...]
    constant: str | None = None
    transposed: bool = False
    factor: float = 1.0
    problem: str | None = None


def fits(adapter: Adapter, manifest: Manifest) -> list[Fit]:
    """Return how the tensors of an adapter fit the runtime constants of a bundle, in the file's
    order.

    A tensor is the constant of its own name, or the one that PyTorch calls the same: the shorter
    name is the end of the longer, without what peft adds.
    """
    infos = {info.name: info for info in manifest.runtime_constants}
    weights = {weight.name: weight for weight in manifest.weights}
    names = {weight.name: _parts(weight.parameter or weight.name) for weight in manifest.weights}
    found = []
    for name, feed in adapter.tensors.items():
        constants = [name] if name in infos else _candidates(_parts(name), names)
        if len(constants) == 1:
            constant = constants[0]
            weight = weights.get(constant)
            found.append(_fit(name, feed, infos[constant], weight, adapter.config))
        else:
            several = f"may be {' or '.join(map(repr, constants[:3]))}"
            problem = several if constants else "no runtime constant is called that"
            found.append(Fit(name, _shape(feed), problem=problem))
    often: Counter[str | None] = Counter(fit.constant for fit in found if fit.constant is not None)
    return [
        replace(fit, problem=f"several tensors are {fit.constant!r}")
        if often[fit.constant] > 1
        else fit
        for fit in found
    ]


def constants_of(
    source: Mapping[str, Feed] | str | os.PathLike[str], manifest: Manifest
) -> dict[str, Feed]:
    """Return the values of runtime constants that an adapter gives, not copied unless they change.

    Args:
        source: Its tensors by name, or its file.
        manifest: Has the runtime constants.

    Raises:
        UsageError: A tensor does not fit, or the file is of no kind that is known.
        ModelError: The file is damaged.
    """
    adapter = Adapter(source) if isinstance(source, Mapping) else read_adapter(source)
    found = fits(adapter, manifest)
    wrong = [fit for fit in found if fit.problem is not None]
    if wrong:
        more = f" (and {len(wrong) - 1} more: see onnxfold adapters)" if len(wrong) > 1 else ""
        reason = f"{wrong[0].tensor!r}: {wrong[0].problem}{more}"
        raise UsageError(reason, file=adapter.file)
    dtypes = {info.name: info.dtype for info in manifest.runtime_constants}
    return {
        str(fit.constant): _converted(adapter.tensors[fit.tensor], fit, dtypes[str(fit.constant)])
        for fit in found
    }


def _candidates(parts: _Parts, names: Mapping[str, _Parts]) -> list[str]:
    """Return the constants whose names are the same as a tensor's, end with it, or are its end."""
    same = [name for name, own in names.items() if own == parts]
    longer = [name for name, own in names.items() if own[-len(parts) :] == parts]
    ends = {name: len(own) for name, own in names.items() if parts[-len(own) :] == own}
    longest = max(ends.values(), default=0)
    return same or longer or [name for name, length in ends.items() if length == longest]


def _parts(name: str) -> _Parts:
    """Return the parts of a parameter's name, without what peft adds."""
    name = _NAMED.sub(r".\1", "." + _WRAPPER.sub(r"\1", name, count=1))
    return tuple(part for part in name.split(".")[1:] if part != "modules_to_save")


def _fit(
    name: str, feed: Feed, info: TensorInfo, weight: Weight | None, config: LoraConfig | None
) -> Fit:
    """Return what becomes of a tensor that is a constant; with the factor by which this adapter is
    stronger than the one in the model.
    """
    fit = Fit(name, _shape(feed))
    straight, turned = info.takes(fit.shape), info.takes(fit.shape[::-1])
    expected = info.name != name and weight is not None and weight.transposed
    transposed = turned if (expected or not straight) and len(fit.shape) == 2 else False
    fit = replace(fit, constant=info.name, transposed=transposed)
    if not straight and not transposed:
        return replace(fit, problem=f"the constant is {info}")
    wanted = _numpy_dtype(info.dtype)
    # onnxruntime's own values are compared when they are given
    dtype = feed.dtype if isinstance(feed, np.ndarray) else wanted
    if dtype != wanted and not (is_float(dtype) and is_float(wanted)):
        return replace(fit, problem=f"its type is {dtype}, the constant is {info}")
    parts = name.split(".")
    if config is None or "lora_B" not in parts or len(fit.shape) < 2:
        return fit
    if weight is None or weight.scale is None:
        return replace(fit, problem="what the model multiplies it by is not known")
    module = ".".join(parts[: parts.index("lora_B")])
    return replace(fit, factor=config.scale(module, fit.shape[1]) / weight.scale)


def _converted(feed: Feed, fit: Fit, dtype: str) -> Feed:
    """Return a tensor as the runtime constant."""
    if not isinstance(feed, np.ndarray):
        return feed
    array: Array = feed.T if fit.transposed else feed
    if fit.factor != 1:
        array = (array.astype(np.float64) * fit.factor).astype(array.dtype)
    return array.astype(_numpy_dtype(dtype), copy=False)


def _numpy_dtype(dtype: str) -> Any:
    return np.dtype(getattr(ml_dtypes, dtype, None) or numpy_name(dtype))


def _shape(feed: Feed) -> tuple[int, ...]:
    shape: Any = feed.shape
    return tuple(shape() if callable(shape) else shape)
