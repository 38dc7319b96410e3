"""Inputs that the user gives: a mapping, an .npz file, or ONNX test data sets (.pb)."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from onnxfold.comparison.random_feeds import Feed, Feeds
from onnxfold.errors import UsageError

GivenFeeds = Mapping[str, Any] | str | os.PathLike[str]


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
        value = np.asarray(value, dtype=dtype)
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
