"""Values for inputs: those that a user gives, and kinds of random numbers.

A user gives a mapping, an .npz file, or ONNX test data sets (.pb).
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
GivenFeeds = Mapping[str, Any] | str | os.PathLike[str]
_Make = Callable[[np.random.Generator, Sequence[int]], Any]
_MESSAGES: dict[Any, tuple[Any, Callable[[Any], Any]]] = {
    ir.SequenceType: (onnx.SequenceProto, numpy_helper.to_list),
    ir.OptionalType: (onnx.OptionalProto, numpy_helper.to_optional),
}
"""What a file of a test data set holds, and how it is read, where it is no tensor."""


def random_floats(
    rng: np.random.Generator,
    dtype: ir.DataType,
    shape: Sequence[int],
    make: _Make | None = None,
) -> Array:
    """Return floating-point or complex numbers of an element type: those that a function makes of
    the shape, or standard normal ones.
    """
    real = np.asarray(rng.standard_normal(shape) if make is None else make(rng, shape))
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        real = real + 1j * rng.standard_normal(shape)
    if dtype == ir.DataType.FLOAT8E8M0:
        real = np.abs(real)  # has no sign
    with np.errstate(all="ignore"):  # what a type has no number for
        return np.asarray(real).astype(dtype.numpy())


def integer_range(dtype: ir.DataType) -> tuple[int, int]:
    """Return the lowest value and the exclusive bound of an integer type."""
    if dtype.is_signed():
        half = 1 << (dtype.bitwidth - 1)
        return -half, half
    return 0, 1 << dtype.bitwidth


def given_feeds(
    feeds: GivenFeeds, required: list[ir.Value], optional: list[ir.Value]
) -> dict[str, Feeds]:
    """Return the feeds of one or more runs, by the name of the run.

    Args:
        feeds: Arrays by input name; or an .npz file with such arrays; or a folder with
            `input_0.pb`, ... in the order of the inputs; or a folder of such folders.
        required: The inputs that must be fed.
        optional: Inputs with a default value, fed if they are given.

    Raises:
        UsageError: A file cannot be read, or names, types or ranks do not fit the inputs.
    """
    inputs = [*required, *optional]
    sets: dict[str, Mapping[str, Any]] = {}
    if isinstance(feeds, Mapping):
        sets["given"] = feeds
    elif (path := Path(feeds)).is_dir():
        folders = [path, *sorted(child for child in path.iterdir() if child.is_dir())]
        sets.update((f.name, fed) for f in folders if (fed := _read_folder(f, inputs)))
        if not sets:
            raise UsageError("the folder holds no input_*.pb", file=path)
    else:
        sets[path.name] = _read_npz(path)
    return {run: _checked(fed, required, inputs) for run, fed in sets.items()}


def _read_npz(path: Path) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        reason = "not an .npz file" if path.exists() else "no such file"
        raise UsageError(f"cannot read the feeds: {reason}", file=path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except Exception as error:  # NumPy, zipfile and zlib raise many classes for damaged files
        raise UsageError(f"cannot read the feeds: {error}", file=path) from error


def _read_folder(folder: Path, inputs: list[ir.Value]) -> dict[str, Any]:
    """Return one test data set; input_N.pb belongs to input number N."""
    fed: dict[str, Any] = {}
    for file in folder.glob("input_*.pb"):
        match = re.fullmatch(r"input_(\d+)\.pb", file.name)
        if match is None or int(match[1]) >= len(inputs):
            raise UsageError(f"the model has {len(inputs)} inputs", file=file)
        value = inputs[int(match[1])]
        message, read = _MESSAGES.get(type(value.type), (onnx.TensorProto, numpy_helper.to_array))
        try:
            fed[value.name or ""] = read(message.FromString(file.read_bytes()))
        except Exception as error:  # onnx raises many classes for damaged files
            raise UsageError(f"cannot read the feed: {error}", file=file) from error
    return fed


def _checked(fed: Mapping[str, Any], required: list[ir.Value], inputs: list[ir.Value]) -> Feeds:
    known = {value.name: value for value in inputs}
    for name in fed:
        if name not in known:
            has = ", ".join(map(str, known)) or "none"
            raise UsageError(f"the model has no input {name!r}; it has: {has}")
    for value in required:
        if value.name not in fed:
            has = ", ".join(fed) or "none"
            raise UsageError(f"the feeds lack the input {value.name!r}; they have: {has}")
    return {name: _converted(value, known[name]) for name, value in fed.items()}


def _converted(value: Any, wanted: ir.Value) -> Feed:
    """Convert the feed of an input, which is None where an optional has no value."""
    kind = wanted.type.elem_type if isinstance(wanted.type, ir.OptionalType) else wanted.type
    if value is None or not isinstance(kind, ir.SequenceType):
        return None if value is None else _array_for(value, wanted)
    try:
        return [_array_for(item, wanted) for item in value]
    except TypeError as error:
        raise UsageError(f"input {wanted.name!r} cannot be fed: {error}") from error


def _array_for(value: Any, wanted: ir.Value) -> Array:
    """Lists of numbers become arrays of the input's type; an array must have it already."""
    if wanted.dtype is None:
        return np.asarray(value)
    dtype = wanted.dtype.numpy()
    if not isinstance(value, np.ndarray | np.generic):
        try:
            value = np.asarray(value, dtype=dtype)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise UsageError(f"input {wanted.name!r} cannot be fed: {error}") from error
    array = np.asarray(value)
    if dtype.kind == "O" and array.dtype.kind in "US":  # NumPy's files hold text so,
        array = array.astype(object)
    if array.dtype.type is np.void and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)  # and bfloat16 and its like as raw bytes
    if array.dtype != dtype:
        raise UsageError(f"input {wanted.name!r} is {dtype}, the feed {array.dtype}")
    if wanted.shape is not None and len(wanted.shape) != array.ndim:
        has = f"input {wanted.name!r} has {len(wanted.shape)} dimensions"
        raise UsageError(f"{has}, the feed {array.ndim}")
    return array


class Numbers(NamedTuple):
    """What the elements of an input are: a name for messages, a function that makes floating point
    numbers, and the least and greatest integer; None for the extremes of their type.
    """

    name: str
    floats: _Make
    integers: tuple[int, int] | None


def _special(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """Return numbers with a NaN or infinity, or more: up to one in eight, or three."""
    numbers = np.asarray(rng.standard_normal(shape))
    flat = numbers.reshape(-1)
    most = min(flat.size, max(3, flat.size // 8))
    places = rng.permutation(flat.size)[: rng.integers(most) + 1 if most else 0]
    flat[places] = np.resize(np.roll([np.nan, np.inf, -np.inf], rng.integers(3)), len(places))
    return numbers


def _one_nan(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """Return numbers, one of them a NaN."""
    numbers = np.asarray(rng.standard_normal(shape))
    numbers.reshape(-1)[rng.integers(numbers.size)] = np.nan
    return numbers


USUAL = Numbers("numbers around 0", lambda r, s: r.standard_normal(s), (0, 7))
NAN = (
    Numbers("NaN and infinities", _special, None),
    Numbers(
        "many NaN and infinities",
        lambda r, s: r.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], s),
        (0, 1),
    ),
    Numbers("only NaN", lambda r, s: np.full(s, np.nan), (0, 7)),
    Numbers("NaN in most places", lambda r, s: r.choice([*[np.nan] * 8, 1.0, 2.0], s), (0, 7)),
    Numbers("a NaN", _one_nan, (0, 7)),
)
KINDS = (
    USUAL,
    *NAN,
    Numbers(
        "numbers from 100 to 1000 of both signs",
        lambda r, s: r.uniform(100, 1000, s) * r.choice([-1, 1], s),
        (-1000, 1000),
    ),
    # for casts: beyond types of integers, and no product of three is an infinity yet
    Numbers(
        "numbers up to 1e12", lambda r, s: r.normal(0, 10 ** r.uniform(3, 12, s)), (0, 1 << 20)
    ),
    # the mean of the squares less the square of the mean has no digit left of the variance
    Numbers("numbers around 1000", lambda r, s: 1000 + r.standard_normal(s), (0, 7)),
    Numbers("equal numbers", lambda r, s: np.full(s, 10.1), (3, 3)),
    Numbers("numbers around 1e15", lambda r, s: r.standard_normal(s) * 1e15, (0, 1 << 30)),
    Numbers("numbers around 1e-30", lambda r, s: r.standard_normal(s) * 1e-30, (0, 1)),
    Numbers("numbers from 0 to 100", lambda r, s: r.uniform(0, 100, s), (0, 100)),
    Numbers("numbers from -20 to -5", lambda r, s: r.uniform(-20, -5, s), (-20, -5)),
    Numbers("equal numbers and halves", lambda r, s: r.integers(-5, 6, s) / 2, (-1, 1)),
    Numbers("zeros of both signs", lambda r, s: r.choice([0.0, -0.0], s), (0, 0)),
)
