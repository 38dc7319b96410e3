"""Match the tensors of adapters with runtime constants."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from onnxfold.runtime.adapter_files import Adapter, LoraConfig, read_adapter
from onnxfold.runtime.bundles.manifest import Manifest, TensorInfo, Weight
from onnxfold.support.errors import UsageError
from onnxfold.support.onnxruntime_sessions import Feed, array_of, numpy_name
from onnxfold.tools.comparison.result import is_float

_Parts = tuple[str, ...]

# The prefix of peft for the names of a model's modules.
_WRAPPER = re.compile(r"(^|\.)base_model\.model\.")
# Names followed by the name of the adapter, which its file omits.
_NAMED = re.compile(r"\.(lora_[AB]|modules_to_save)\.[^.]+(?=\.)|\.(lora_embedding_[AB])\.[^.]+$")


@dataclass(frozen=True)
class Fit:
    """How a tensor of an adapter fits a runtime constant.

    Attributes:
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
    """Return the fit of each tensor of an adapter to the runtime constants, in file order.

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
            found.append(_fit(name, feed, infos[constant], weights.get(constant), adapter.config))
        else:
            several = f"may be {' or '.join(map(repr, constants[:3]))}"
            problem = several if constants else "no runtime constant is called that"
            found.append(Fit(name, _shape(name, feed), problem=problem))
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
    """Return the runtime constants in an adapter, not copied unless they are converted."""
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
    name = _NAMED.sub(r".\1\2", "." + _WRAPPER.sub(r"\1", name, count=1))
    return tuple(part for part in name.split(".")[1:] if part != "modules_to_save")


def _fit(
    name: str, feed: Feed, info: TensorInfo, weight: Weight | None, config: LoraConfig | None
) -> Fit:
    """Return the fit of a tensor to a constant; its factor is the ratio of the two scales."""
    fit = Fit(name, _shape(name, feed))
    straight = info.takes(fit.shape)
    turned = info.takes(fit.shape[::-1])
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
    module, *second = re.split(r"(?:^|\.)lora_(?:embedding_)?B(?=\.|$)", name)
    if config is None or not second:
        return fit
    if weight is None or weight.scale is None:
        return replace(fit, problem="what the model multiplies it by is not known")
    return replace(fit, factor=config.scale(module, fit.shape[1]) / weight.scale)


def _converted(feed: Feed, fit: Fit, dtype: str) -> Feed:
    """Convert a tensor to the layout and dtype of its runtime constant."""
    if not (isinstance(feed, np.ndarray) or fit.transposed):
        return feed
    array = array_of(feed).T if fit.transposed else array_of(feed)
    if fit.factor != 1:
        array = (array.astype(np.float64) * fit.factor).astype(array.dtype)
    return array.astype(_numpy_dtype(dtype), copy=False)


def _numpy_dtype(dtype: str) -> Any:
    return np.dtype(getattr(ml_dtypes, dtype, None) or numpy_name(dtype))


def _shape(name: str, feed: Feed) -> tuple[int, ...]:
    if not hasattr(feed, "shape"):
        raise UsageError(f"{name!r}: expected an array or an OrtValue, got {type(feed).__name__}")
    shape: Any = feed.shape
    return tuple(shape() if callable(shape) else shape)
