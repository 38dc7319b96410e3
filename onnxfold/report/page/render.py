"""A document as a page that needs nothing else, or as JSON."""

from __future__ import annotations

import json
import os
from functools import cache
from importlib import resources
from typing import Any

from onnxfold.errors import UsageError
from onnxfold.files import os_error, replacing
from onnxfold.storage.save import real_target


def check_destination(path: str | os.PathLike[str], *others: str | os.PathLike[str]) -> None:
    """See that a page may be written, before it has cost any time.

    Args:
        path: Where it is to go.
        others: Files of the same run, which it must not replace.

    Raises:
        UsageError: It is not called .html or .json, no file, or one of ``others``, or its folder is
            missing or read-only.
    """
    name = os.fspath(path)
    if not name.lower().endswith((".html", ".json")):  # a slip must not cost a model
        raise UsageError("the report's name must end in .html or .json", file=name)
    real = real_target(name)
    if not os.access(os.path.dirname(real), os.W_OK):
        raise UsageError("cannot be written: its folder is read-only", file=name)
    for other in others:
        if real == os.path.realpath(other):
            raise UsageError("the report would replace a model of this run", file=name)


def write_page(document: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a document: as JSON if the file's name ends in .json, otherwise as a page.

    Raises:
        OnnxFoldError: It cannot be written.
    """
    name = os.fspath(path)
    text = _json(document) if name.lower().endswith(".json") else page_text(document)
    try:
        with replacing(os.path.realpath(name)) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise os_error(error, name) from error


def page_text(document: dict[str, Any]) -> str:
    """Return the page of a document."""
    # In a script element only these could end the data or begin a comment; JSON has escapes.
    data = _json(document).replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    pieces = _asset("page.html").split("%%")  # every other one is a name
    pieces[1::2] = (data if name == "DATA" else _asset(name) for name in pieces[1::2])
    return "".join(pieces)


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


@cache
def _asset(name: str) -> str:
    file = resources.files("onnxfold.report.page") / "assets" / name
    return file.read_text(encoding="utf-8")
