"""Inputs for a model: random ones, valid where the graph tells what is valid, or given ones.

The user gives a mapping, an .npz file, or ONNX test data sets (.pb).
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.comparison.categories import categories
from onnxfold.comparison.dims import IntegerUse, concrete, integer_use
from onnxfold.errors import UsageError, option
from onnxfold.graphs import shaped, type_text

Array = NDArray[Any]
Feed = Array | list[Array] | None
Feeds = dict[str, Feed]
GivenFeeds = Mapping[str, Any] | str | os.PathLike[str]

MAX_ELEMENTS = 1 << 28  # of one input: a larger one is a mistake in a size
_SMALL = 8  # exclusive bound of 32- and 64-bit integers whose use is not known
_SINGLES = (64, 512)  # sizes and lengths that a single integer may be
_SEQUENCE_LENGTH = 2
_WORDS = ("", "a", "bc", "üñï")


class RandomFeeds:
    """Makes random feeds for inputs of a model, whose graph tells how integers are used."""

    def __init__(self, model: ir.Model, inputs: list[ir.Value]) -> None:
        self._inputs = inputs
        types = SymbolicAnalysis(model)
        self._uses = {
            value.name: integer_use(types, value)
            for value in inputs
            if value.dtype is not None and value.dtype.is_integer()
        }
        self._words = {
            value.name: words
            for value in inputs
            if value.dtype == ir.DataType.STRING and (words := categories(model, value))
        }
        self._singles = {
            value.name: use
            for value in inputs
            if (use := self._uses.get(value.name)) is not None
            and not use.bounds
            and math.prod(concrete(value, {})) == 1
        }

    @property
    def choices(self) -> int:
        """How many values there are to choose from for a single integer, at least 1."""
        return 1 + max((len(use.compared) for use in self._singles.values()), default=0)

    @property
    def fills(self) -> tuple[int | None, ...]:
        """Values worth trying for the integers of which the graph tells nothing."""
        if any(not use.compared for use in self._singles.values()):
            return (None, 1, *_SINGLES)
        others = (use for name, use in self._uses.items() if name not in self._singles)
        return (None, 1) if any(not use.bounds for use in others) else (None,)

    def make(
        self, seed: int, sizes: Mapping[str, int], integers: int | None = None, choice: int = 0
    ) -> Feeds:
        """Return one set of feeds.

        Args:
            seed: Seed of the random numbers.
            sizes: Size of every dynamic dimension, by name.
            integers: The value of all integers whose valid range the graph does not tell,
                or None for random ones; arrays are filled with at most 1.
            choice: Which of the constants that a single integer is compared with is taken for it;
                after the last comes a random number, or that of `integers`.

        Raises:
            UsageError: An input has a type that cannot be made up, or is too large.
        """
        rng = np.random.default_rng(seed)

        def feed(value: ir.Value, type_: ir.TypeProtocol | None) -> Feed:
            if isinstance(type_, ir.OptionalType):
                return feed(value, type_.elem_type)
            if isinstance(type_, ir.SequenceType):
                items = [feed(value, type_.elem_type) for _ in range(_SEQUENCE_LENGTH)]
                return [item for item in items if isinstance(item, np.ndarray)]
            if not isinstance(type_, ir.TensorType):
                reason = f"cannot generate input {value.name!r} of type {type_text(value)}"
                raise UsageError(f"{reason}; give it with {option('feeds')}")
            shape = concrete(value, sizes)
            if int(np.prod(shape, dtype=object)) > MAX_ELEMENTS:
                reason = f"input {value.name!r}, {shaped(type_, shape)}, is too large to generate; "
                how = f"give it with {option('feeds')}, or its sizes with {option('dims')}"
                raise UsageError(f"{reason}{how}")
            is_mask = "mask" in (value.name or "").lower()
            if type_.dtype == ir.DataType.STRING:
                return self._strings(value, rng, shape)
            if type_.dtype == ir.DataType.BOOL:
                return np.ones(shape, bool) if is_mask else np.asarray(rng.random(shape) < 0.7)
            if not type_.dtype.is_integer():
                return random_floats(rng, type_.dtype, shape)
            use = self._uses.get(value.name, IntegerUse())
            fill = integers
            if value.name in self._singles:
                fill = [*use.compared, fill][choice % (len(use.compared) + 1)]
            elif is_mask:
                fill = 1
            elif fill is not None:
                fill = min(fill, 1)
            limit, dtype = use.limit(sizes), type_.dtype
            if limit is None and fill is not None:
                return np.full(shape, fill).astype(dtype.numpy())
            bounds = use.least, _SMALL if limit is None else limit
            if limit is None and dtype.bitwidth <= 16:
                bounds = integer_range(dtype)
            return np.asarray(rng.integers(*bounds, shape)).astype(dtype.numpy())

        return {value.name or "": feed(value, value.type) for value in self._inputs}

    def _strings(self, value: ir.Value, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return words that the graph knows, in each column (position on the last axis) its own."""
        words = self._words.get(value.name, {})
        made = np.asarray(rng.choice(words.get(0, _WORDS), shape), dtype=object)
        for column in words if made.ndim and made.shape[-1] > 1 else ():
            made[..., column] = rng.choice(words[column], made.shape[:-1])
        return made


def random_floats(
    rng: np.random.Generator,
    dtype: ir.DataType,
    shape: Sequence[int],
    make: Callable[[np.random.Generator, Sequence[int]], Any] | None = None,
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
    """Reads the feeds of one or more runs.

    Args:
        feeds: Arrays by input name; or an .npz file with such arrays; or a folder with
            `input_0.pb`, ... in the order of the inputs; or a folder of such folders.
        required: The inputs that must be fed.
        optional: Inputs with a default value, fed if they are given.

    Returns:
        Feeds by the name of the run.

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
    try:
        if not zipfile.is_zipfile(path) and path.exists():
            raise UsageError("cannot read the feeds: not an .npz file", file=path)
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except FileNotFoundError:
        raise UsageError("cannot read the feeds: no such file", file=path) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"cannot read the feeds: {error}", file=path) from error


def _read_folder(folder: Path, inputs: list[ir.Value]) -> dict[str, Any]:
    """Return one test data set; input_N.pb belongs to input number N."""
    fed: dict[str, Any] = {}
    for file in folder.glob("input_*.pb"):
        match = re.fullmatch(r"input_(\d+)\.pb", file.name)
        if match is None or int(match[1]) >= len(inputs):
            raise UsageError(f"the model has {len(inputs)} inputs", file=file)
        name = inputs[int(match[1])].name or ""
        try:
            fed[name] = onnx.numpy_helper.to_array(onnx.load_tensor(file))
        except (DecodeError, ValueError, TypeError) as error:
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
    """Lists of numbers become arrays of the input's type; an array must have it already."""
    if value is None or isinstance(wanted.type, ir.SequenceType):
        return None if value is None else [np.asarray(item) for item in value]
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
        raise UsageError(
            f"input {wanted.name!r} has {len(wanted.shape)} dimensions, the feed {array.ndim}"
        )
    return array
