"""Feeds of models: those of the user, and kinds of random numbers.

The user's feeds are a mapping, an .npz file, or ONNX test data sets (.pb).
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfold.support.errors import UsageError

Array = NDArray[Any]
Feed = Array | list[Array] | None
Feeds = dict[str, Feed]
UserFeeds = Mapping[str, Any] | str | os.PathLike[str]
_Make = Callable[[np.random.Generator, Sequence[int]], Any]
_MESSAGES: dict[Any, tuple[Any, Callable[[Any], Any]]] = {
    ir.SequenceType: (onnx.SequenceProto, numpy_helper.to_list),
    ir.OptionalType: (onnx.OptionalProto, numpy_helper.to_optional),
}
"""The protobuf message and the reader of a test data file, for types other than tensors."""


def random_floats(
    rng: np.random.Generator,
    dtype: ir.DataType,
    shape: Sequence[int],
    make: _Make | None = None,
) -> Array:
    """Return random floating-point or complex numbers.

    Args:
        rng: The source of random numbers.
        dtype: The element type.
        shape: The shape.
        make: The function that returns the real parts, by default standard normal numbers. The
            imaginary parts are always standard normal numbers.
    """
    numbers = np.asarray(rng.standard_normal(shape) if make is None else make(rng, shape))
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        numbers = numbers + 1j * rng.standard_normal(shape)
    if dtype == ir.DataType.FLOAT8E8M0:
        numbers = np.abs(numbers)  # the type has no sign
    with np.errstate(all="ignore"):  # the type may not represent all numbers
        return np.asarray(numbers).astype(dtype.numpy())


def integer_range(dtype: ir.DataType) -> tuple[int, int]:
    """Return the lowest value and the exclusive upper bound of an integer type."""
    if dtype.is_signed():
        half = 1 << (dtype.bitwidth - 1)
        return -half, half
    return 0, 1 << dtype.bitwidth


def user_feeds(
    feeds: UserFeeds, required: list[ir.Value], optional: list[ir.Value]
) -> dict[str, Feeds]:
    """Return the user's feeds of one or more runs, by the name of the run.

    The name of a run is "given" for arrays, and otherwise the name of the file or folder.

    Args:
        feeds: Arrays by input name, an .npz file with such arrays, a folder with `input_0.pb`, ...
            in the order of the inputs, or a folder of such folders.
        required: Inputs that must be fed.
        optional: Inputs with a default value, which may be fed.

    Raises:
        UsageError: A file is missing or cannot be read, or names, types or ranks do not fit the
            inputs.
    """
    inputs = [*required, *optional]
    runs: dict[str, Mapping[str, Any]] = {}
    if isinstance(feeds, Mapping):
        runs["given"] = feeds
    elif (path := Path(feeds)).is_dir():
        for folder in [path, *sorted(child for child in path.iterdir() if child.is_dir())]:
            arrays = _read_folder(folder, inputs)
            if arrays:
                runs[folder.name] = arrays
        if not runs:
            raise UsageError("the folder contains no input_*.pb", file=path)
    else:
        runs[path.name] = _read_npz(path)
    return {name: _checked(arrays, required, inputs) for name, arrays in runs.items()}


def _read_npz(path: Path) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        reason = "not an .npz file" if path.exists() else "no such file"
        raise UsageError(f"cannot read the feeds: {reason}", file=path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except Exception as error:  # NumPy, zipfile and zlib raise many classes on damaged files
        raise UsageError(f"cannot read the feeds: {error}", file=path) from error


def _read_folder(folder: Path, inputs: list[ir.Value]) -> dict[str, Any]:
    """Return one test data set. The file input_N.pb belongs to input number N.

    The result is empty if the folder has no such file.
    """
    feeds: dict[str, Any] = {}
    for file in folder.glob("input_*.pb"):
        match = re.fullmatch(r"input_(\d+)\.pb", file.name)
        if match is None or int(match[1]) >= len(inputs):
            reason = f"the model has only {len(inputs)} inputs, numbered from 0"
            raise UsageError(reason, file=file)
        value = inputs[int(match[1])]
        message, read = _MESSAGES.get(type(value.type), (onnx.TensorProto, numpy_helper.to_array))
        try:
            feeds[value.name or ""] = read(message.FromString(file.read_bytes()))
        except Exception as error:  # onnx raises many classes on damaged files
            raise UsageError(f"cannot read the feed: {error}", file=file) from error
    return feeds


def _checked(feeds: Mapping[str, Any], required: list[ir.Value], inputs: list[ir.Value]) -> Feeds:
    inputs_by_name = {value.name: value for value in inputs}
    for name in feeds:
        if name not in inputs_by_name:
            names = ", ".join(map(str, inputs_by_name)) or "none"
            raise UsageError(f"the model has no input {name!r}; it has: {names}")
    for value in required:
        if value.name not in feeds:
            names = ", ".join(feeds) or "none"
            raise UsageError(f"the feeds lack the input {value.name!r}; they have: {names}")
    return {name: _converted(feed, inputs_by_name[name]) for name, feed in feeds.items()}


def _converted(feed: Any, model_input: ir.Value) -> Feed:
    """Convert the feed of an input to an array, or to a list of arrays for a sequence.

    The result is None if the feed is None, which is an optional without a value.

    Raises:
        UsageError: The feed does not have the type of the input.
    """
    if feed is None:
        return None
    type_ = model_input.type
    if isinstance(type_, ir.OptionalType):
        type_ = type_.elem_type
    if not isinstance(type_, ir.SequenceType):
        return _array_for(feed, model_input)
    try:
        return [_array_for(item, model_input) for item in feed]
    except TypeError as error:
        raise UsageError(f"input {model_input.name!r} cannot be fed: {error}") from error


def _array_for(feed: Any, model_input: ir.Value) -> Array:
    """Return a feed as an array of the input's dtype.

    Lists and numbers are converted. An array must already have the dtype, or contain its raw bytes.

    Raises:
        UsageError: The feed cannot be converted, or has another dtype or rank than the input.
    """
    name = model_input.name
    if model_input.dtype is None:
        return np.asarray(feed)
    dtype = model_input.dtype.numpy()
    if not isinstance(feed, np.ndarray | np.generic):
        try:
            feed = np.asarray(feed, dtype=dtype)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise UsageError(f"input {name!r} cannot be fed: {error}") from error
    array = np.asarray(feed)
    # .npz files contain strings as fixed-width text, and types such as bfloat16 as raw bytes.
    if dtype.kind == "O" and array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype.type is np.void and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)
    if array.dtype != dtype:
        reason = f"input {name!r} has type {dtype}, but the feed has {array.dtype}"
        raise UsageError(reason)
    if model_input.shape is not None and len(model_input.shape) != array.ndim:
        rank = len(model_input.shape)
        raise UsageError(f"input {name!r} has {rank} dimensions, but the feed has {array.ndim}")
    return array


class Numbers(NamedTuple):
    """A kind of random numbers for the elements of an input.

    Attributes:
        name: The name in messages.
        floats: The function that returns floating-point numbers for a generator and a shape.
        integers: The smallest and the largest integer. None for the limits of the type and a few
            numbers between them.
    """

    name: str
    floats: _Make
    integers: tuple[int, int] | None


def _some_nonfinite(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """Return numbers that include 1 to max(3, size / 8) NaNs and infinities."""
    numbers = np.asarray(rng.standard_normal(shape))
    flat = numbers.reshape(-1)
    limit = min(flat.size, max(3, flat.size // 8))
    indices = rng.permutation(flat.size)[: rng.integers(limit) + 1 if limit else 0]
    flat[indices] = np.resize(np.roll([np.nan, np.inf, -np.inf], rng.integers(3)), len(indices))
    return numbers


def _one_nan(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """Return numbers with one NaN."""
    numbers = np.asarray(rng.standard_normal(shape))
    numbers.reshape(-1)[rng.integers(numbers.size)] = np.nan
    return numbers


USUAL = Numbers("numbers around 0", lambda r, s: r.standard_normal(s), (0, 7))
NAN = (
    Numbers("NaN and infinities", _some_nonfinite, None),
    Numbers(
        "many NaN and infinities",
        lambda r, s: r.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], s),
        (0, 1),
    ),
    Numbers("only NaN", lambda r, s: np.full(s, np.nan), (0, 7)),
    Numbers("mostly NaN", lambda r, s: r.choice([*[np.nan] * 8, 1.0, 2.0], s), (0, 7)),
    Numbers("one NaN", _one_nan, (0, 7)),
)
KINDS = (
    USUAL,
    *NAN,
    Numbers(
        "numbers from 100 to 1000 of both signs",
        lambda r, s: r.uniform(100, 1000, s) * r.choice([-1, 1], s),
        (-1000, 1000),
    ),
    # For casts: the numbers exceed integer types, but no product of three is infinite.
    Numbers(
        "numbers up to 1e12", lambda r, s: r.normal(0, 10 ** r.uniform(3, 12, s)), (0, 1 << 20)
    ),
    # For variances: the mean of squares minus the squared mean loses all digits.
    Numbers("numbers around 1000", lambda r, s: 1000 + r.standard_normal(s), (0, 7)),
    Numbers("equal numbers", lambda r, s: np.full(s, 10.1), (3, 3)),
    Numbers("numbers around 1e15", lambda r, s: r.standard_normal(s) * 1e15, (0, 1 << 30)),
    Numbers("numbers around 1e-30", lambda r, s: r.standard_normal(s) * 1e-30, (0, 1)),
    Numbers("numbers from 0 to 100", lambda r, s: r.uniform(0, 100, s), (0, 100)),
    Numbers("numbers from -20 to -5", lambda r, s: r.uniform(-20, -5, s), (-20, -5)),
    Numbers("equal numbers and halves", lambda r, s: r.integers(-5, 6, s) / 2, (-1, 1)),
    Numbers("zeros of both signs", lambda r, s: r.choice([0.0, -0.0], s), (0, 0)),
)
