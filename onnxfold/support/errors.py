"""The errors of the library, and functions for parts of their messages.

A message names the file and the node, if they are known, and the reason.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import os
from collections.abc import Collection, Iterator, Mapping

# Maximum numbers of characters of the parts of a message.
_MAX_NODE_NAME = 200
_MAX_REASON = 1000

_GAP = "..."
"""The replacement of the middle of a long text."""
_KEPT_AT_END = 100
"""The number of characters at the end of a long text that `cut` keeps."""

_MAX_COMPARED = 20_000
"""Maximum number of valid names that are compared with an unknown name, to limit the time."""

_spellings: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("spellings")


def option(argument: str) -> str:
    """Return the spelling of an argument of a public function for messages.

    For example, the spelling of ``fold_quantized`` is ``fold_quantized`` in Python and
    ``--fold-quantized`` on the command line. Spellings are a property of the context, because
    errors, warnings, reasons, tables and reports contain them.
    """
    return _spellings.get({}).get(argument, argument)


@contextlib.contextmanager
def spelled(options: Mapping[str, str]) -> Iterator[None]:
    """Change the spellings that `option` returns in this context.

    Args:
        options: The new spellings, by argument. The spellings of other arguments do not change.
    """
    token = _spellings.set({**_spellings.get({}), **options})
    try:
        yield
    finally:
        _spellings.reset(token)


def spellings() -> dict[str, str]:
    """Return the spellings of this context, for example to pass them to another process."""
    return dict(_spellings.get({}))


class OnnxFoldError(Exception):
    """The base class of all errors that onnxfold raises for bad input or usage.

    Args:
        reason: The problem, in one sentence.
        file: The file with the problem, or None.
        node: The name or the op type of the node with the problem, or the name of the value with
            the problem, or None.
    """

    def __init__(
        self,
        reason: str,
        *,
        file: str | os.PathLike[str] | None = None,
        node: str | None = None,
    ) -> None:
        self.reason = reason
        self.file = os.fspath(file) if file is not None else None
        self.node = node
        super().__init__(reason)

    def __str__(self) -> str:
        file = printable(self.file or "")
        node = f"node {cut(self.node, _MAX_NODE_NAME)!r}" if self.node else ""
        reason = printable(" ".join(cut(self.reason, _MAX_REASON).split()))
        location = [part for part in (file, node) if part]
        return ": ".join([*location, reason])


@contextlib.contextmanager
def about(file: str | os.PathLike[str] | None) -> Iterator[None]:
    """Add a file to errors of onnxfold in this context that do not name a file.

    Raises:
        OnnxFoldError: A MemoryError was raised in the context.
    """
    try:
        yield
    except OnnxFoldError as error:
        if error.file is None and file is not None:
            error.file = os.fspath(file)
        raise
    except MemoryError as error:
        raise OnnxFoldError("there is not enough memory", file=file) from error


def suggestion(name: str, valid_names: Collection[str], max_names: int = 12) -> str:
    """Return the end of a message about an unknown name: a similar name, or the valid names.

    Args:
        name: The unknown name.
        valid_names: The valid names.
        max_names: The maximum number of names to list if none is similar.
    """
    from difflib import get_close_matches

    similar = get_close_matches(name, list(valid_names)[:_MAX_COMPARED], 1)
    if similar:
        return f"; did you mean {similar[0]!r}?"
    if not valid_names:
        return "; there are none"
    more = ", ..." if len(valid_names) > max_names else ""
    return f"; there are {', '.join(sorted(valid_names)[:max_names])}{more}"


def cut(text: str, max_length: int) -> str:
    """Return the text, or the start and the end of a long text. The end often has the reason."""
    if len(text) <= max_length:
        return text
    start = text[: max_length - len(_GAP) - _KEPT_AT_END]
    return f"{start}{_GAP}{text[-_KEPT_AT_END:]}"


def printable(text: str) -> str:
    """Return the text with escaped line breaks and control characters of terminals."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ModelError(OnnxFoldError):
    """The model is not valid ONNX: unparsable, truncated, inconsistent, or of hostile size."""


class MissingFileError(ModelError, FileNotFoundError):
    """A file does not exist. Handlers of Python's ``FileNotFoundError`` also catch this error."""

    def __init__(self, *, file: str | os.PathLike[str]) -> None:
        super().__init__("no such file", file=file)
        self.errno = errno.ENOENT
        self.filename = self.file


class ExternalDataError(ModelError):
    """External data is missing, too short, or points outside the model's folder."""


class UsageError(OnnxFoldError):
    """An option or argument is invalid."""


class CheckFailedError(OnnxFoldError):
    """The outputs of the optimized model differ from those of the original."""
