"""Match the tensors of adapters with runtime constants, and convert the tensors."""

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

# The prefix that peft adds to the names of a model's modules.
_MODEL_PREFIX = re.compile(r"(^|\.)base_model\.model\.")
# A component such as "lora_A", and the name of the adapter after it. Files of adapters do not
# contain the name of the adapter.
_ADAPTER_NAME = re.compile(
    r"\.(lora_[AB]|modules_to_save)\.[^.]+(?=\.)|\.(lora_embedding_[AB])\.[^.]+$"
)


@dataclass(frozen=True)
class Fit:
    """The match of a tensor of an adapter with a runtime constant.

    Attributes:
        tensor: The name of the tensor.
        shape: The shape of the tensor.
        constant: The name of the matching runtime constant; None unless exactly one matches.
        transposed: Whether the tensor is the transpose of the constant.
        factor: The number by which the tensor must be multiplied, so that the product of the
            adapter's matrices has the scale in the adapter's configuration.
        problem: The reason why the tensor does not fit; None if it fits.
    """

    tensor: str
    shape: tuple[int, ...]
    constant: str | None = None
    transposed: bool = False
    factor: float = 1.0
    problem: str | None = None


def fits(adapter: Adapter, manifest: Manifest) -> list[Fit]:
    """Match each tensor of an adapter with the runtime constants, in the order of the tensors.

    A tensor matches the constant with the same name. If there is none, the tensor matches a weight
    that is the same parameter in PyTorch. In this case, one of the two names ends with the other
    one, without the additions of peft. Several tensors that match the same constant do not fit.

    Raises:
        UsageError: A value in the adapter is neither an array nor an ``OrtValue``.
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
            several = f"several constants match, such as {' and '.join(map(repr, constants[:3]))}"
            problem = several if constants else "no runtime constant has this name"
            found.append(Fit(name, _shape(name, feed), problem=problem))
    counts: Counter[str | None] = Counter(fit.constant for fit in found if fit.constant is not None)
    return [
        replace(fit, problem=f"several tensors match {fit.constant!r}")
        if counts[fit.constant] > 1
        else fit
        for fit in found
    ]


def runtime_constants_of(
    source: Mapping[str, Feed] | str | os.PathLike[str], manifest: Manifest
) -> dict[str, Feed]:
    """Return the runtime constants in an adapter.

    Tensors are copied only if their layout, scale or dtype must be converted.

    Args:
        source: The path of an adapter, or its tensors by name.
        manifest: The manifest of the split model.

    Returns:
        The runtime constants by name.

    Raises:
        UsageError: A tensor does not fit, or the kind of the file is not supported.
        ModelError: The file cannot be read, see `read_adapter`.
    """
    adapter = Adapter(source) if isinstance(source, Mapping) else read_adapter(source)
    found = fits(adapter, manifest)
    wrong = [fit for fit in found if fit.problem is not None]
    if wrong:
        reason = f"{wrong[0].tensor!r}: {wrong[0].problem}"
        if len(wrong) > 1:
            reason += f"; {len(wrong)} tensors do not fit, 'onnxfold adapters' lists all of them"
        raise UsageError(reason, file=adapter.file)
    dtypes = {info.name: info.dtype for info in manifest.runtime_constants}
    return {
        str(fit.constant): _converted(adapter.tensors[fit.tensor], fit, dtypes[str(fit.constant)])
        for fit in found
    }


def _candidates(parts: _Parts, names: Mapping[str, _Parts]) -> list[str]:
    """Return the constants whose names match the name of a tensor, given the components of names.

    The first of these sets that is not empty is returned:

    - The constants with the same name as the tensor.
    - The constants whose names end with the name of the tensor.
    - Of the constants with whose names the name of the tensor ends, those with the longest name.
    """
    same = [name for name, other in names.items() if other == parts]
    longer = [name for name, other in names.items() if other[-len(parts) :] == parts]
    shorter = {name: len(other) for name, other in names.items() if parts[-len(other) :] == other}
    longest = max(shorter.values(), default=0)
    return same or longer or [name for name, length in shorter.items() if length == longest]


def _parts(name: str) -> _Parts:
    """Return the components of a parameter's name, without the additions of peft."""
    name = _ADAPTER_NAME.sub(r".\1\2", "." + _MODEL_PREFIX.sub(r"\1", name, count=1))
    return tuple(part for part in name.split(".")[1:] if part != "modules_to_save")


def _fit(
    name: str, feed: Feed, info: TensorInfo, weight: Weight | None, config: LoraConfig | None
) -> Fit:
    """Return whether and how a tensor fits the constant that its name matches.

    For the second matrix of an adapter with a configuration, the factor is the scale in the
    configuration, divided by the scale in the model. For other tensors, the factor is 1.
    """
    fit = Fit(name, _shape(name, feed))
    fits_directly = info.takes(fit.shape)
    fits_transposed = info.takes(fit.shape[::-1])
    # If the shape fits in both layouts, a tensor with another name than the constant has the layout
    # of PyTorch.
    is_transpose = info.name != name and weight is not None and weight.transposed
    is_matrix = len(fit.shape) == 2
    transposed = fits_transposed if (is_transpose or not fits_directly) and is_matrix else False
    fit = replace(fit, constant=info.name, transposed=transposed)
    if not fits_directly and not transposed:
        return replace(fit, problem=f"the constant is {info}")
    expected = _numpy_dtype(info.dtype)
    # The session checks the dtype of an OrtValue.
    dtype = feed.dtype if isinstance(feed, np.ndarray) else expected
    if dtype != expected and not (is_float(dtype) and is_float(expected)):
        return replace(fit, problem=f"the dtype is {dtype}, and the constant is {info}")
    module, *suffix_of_b = re.split(r"(?:^|\.)lora_(?:embedding_)?B(?=\.|$)", name)
    if config is None or not suffix_of_b:
        return fit
    if weight is None or weight.scale is None:
        return replace(fit, problem="the scale of the adapter in the model is not known")
    return replace(fit, factor=config.scale(module, fit.shape[1]) / weight.scale)


def _converted(feed: Feed, fit: Fit, dtype: str) -> Feed:
    """Convert a tensor to the layout and dtype of its runtime constant, and multiply by the factor.

    An ``OrtValue`` with the layout of the constant is returned unchanged.
    """
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
