"""Read adapters from files, and match their tensors with runtime constants.

A file is .safetensors (with the configuration of peft in its folder), .npz or .onnx_adapter.
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
"""The names of an adapter's two files in peft."""

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

_Parts = tuple[str, ...]

# The prefix of peft for the names of a model's modules.
_WRAPPER = re.compile(r"(^|\.)base_model\.model\.")
# Names followed by the name of the adapter, which its file omits.
_NAMED = re.compile(r"\.(lora(?:_embedding)?_[AB]|modules_to_save)\.[^.]+(?=\.)")


@dataclass(frozen=True)
class Adapter:
    """An adapter from a file or from the caller.

    Attributes:
        tensors: The tensors by their names in the file.
        file: The file; None for an adapter of the caller.
        config: The configuration with the scale; None if the adapter has no configuration.
    """

    tensors: Mapping[str, Feed]
    file: Path | None = None
    config: LoraConfig | None = None


@dataclass(frozen=True)
class LoraConfig:
    """The configuration of a LoRA in peft: the factor of the product of its two matrices.

    Attributes:
        alpha: The numerator.
        alphas: Other numerators, by the end of a module's name.
        by_root: Whether the denominator is the square root of the rank instead of the rank.
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
    """Read an adapter from a file or from a folder that peft has written.

    Raises:
        UsageError: The kind of file is unknown.
        ModelError: The file is damaged, or cannot be read.
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


@dataclass(frozen=True)
class Fit:
    """How a tensor of an adapter fits a runtime constant.

    Attributes:
        tensor: Its name.
        shape: Its shape in the file.
        constant: The name of the matching runtime constant; None if no constant matches.
        transposed: Whether the tensor is the transpose of the constant.
        factor: The factor that gives the product of the adapter its configured scale.
        problem: The reason why it does not fit; None if it fits.
    """

    tensor: str
    shape: tuple[int, ...]
    constant: str | None = None
    transposed: bool = False
    factor: float = 1.0
    problem: str | None = None


def fits(adapter: Adapter, manifest: Manifest) -> list[Fit]:
    """Return the fit of each tensor of an adapter to the runtime constants of a bundle, in file
    order.

    A tensor matches the constant of the same name, or the one of the same PyTorch parameter:
    without the additions of peft, the shorter name is the end of the longer one.
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


def runtime_constants_of(
    source: Mapping[str, Feed] | str | os.PathLike[str], manifest: Manifest
) -> dict[str, Feed]:
    """Return the runtime constants in an adapter, not copied unless they are converted.

    Args:
        source: Its tensors by name, or its file.
        manifest: The manifest with the runtime constants.

    Raises:
        UsageError: A tensor does not fit, or the kind of file is unknown.
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
    """Return the constants with the same name as a tensor, else with a longer or a shorter one."""
    same = [name for name, own in names.items() if own == parts]
    longer = [name for name, own in names.items() if own[-len(parts) :] == parts]
    ends = {name: len(own) for name, own in names.items() if parts[-len(own) :] == own}
    longest = max(ends.values(), default=0)
    return same or longer or [name for name, length in ends.items() if length == longest]


def _parts(name: str) -> _Parts:
    """Return the components of a parameter's name, without the additions of peft."""
    name = _NAMED.sub(r".\1", "." + _WRAPPER.sub(r"\1", name, count=1))
    return tuple(part for part in name.split(".")[1:] if part != "modules_to_save")


def _fit(
    name: str, feed: Feed, info: TensorInfo, weight: Weight | None, config: LoraConfig | None
) -> Fit:
    """Return the fit of a tensor to a constant, with the ratio of the adapter's scale to that of
    the model.
    """
    fit = Fit(name, _shape(feed))
    straight, turned = info.takes(fit.shape), info.takes(fit.shape[::-1])
    expected = info.name != name and weight is not None and weight.transposed
    transposed = turned if (expected or not straight) and len(fit.shape) == 2 else False
    fit = replace(fit, constant=info.name, transposed=transposed)
    if not straight and not transposed:
        return replace(fit, problem=f"the constant is {info}")
    wanted = _numpy_dtype(info.dtype)
    # onnxruntime's own values are checked when they are set
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
    """Convert a tensor to the layout and dtype of its runtime constant."""
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
