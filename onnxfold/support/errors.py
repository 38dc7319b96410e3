"""Errors of the library: every one names the file, the node and the reason where they are known."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import os
from collections.abc import Collection, Iterator, Mapping

_spellings: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("spellings")


def option(argument: str) -> str:
    """Return what the user types for an argument of a public function: ``fold_quantized`` in
    Python, ``--fold-quantized`` on the command line.
    """
    return _spellings.get({}).get(argument, argument)


@contextlib.contextmanager
def spelled(options: Mapping[str, str]) -> Iterator[None]:
    """Let `option` return other spellings in this context, but for arguments that are not given."""
    token = _spellings.set({**_spellings.get({}), **options})
    try:
        yield
    finally:
        _spellings.reset(token)


def spellings() -> dict[str, str]:
    """Return the spellings of this context, to pass them to another process."""
    return dict(_spellings.get({}))


class OnnxFoldError(Exception):
    """Base of all errors that onnxfold raises for bad input or usage.

    Args:
        reason: What is wrong, in one sentence.
        file: The file concerned.
        node: The name (or op type) of the node or value concerned.
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
        at = f"node {cut(self.node, 200)!r}" if self.node else None
        where = [part for part in (printable(self.file or ""), at) if part]
        return ": ".join([*where, printable(" ".join(cut(self.reason, 1000).split()))])


@contextlib.contextmanager
def about(file: str | os.PathLike[str] | None) -> Iterator[None]:
    """What goes wrong in this context is about a file: errors that name none name it."""
    try:
        yield
    except OnnxFoldError as error:
        if error.file is None and file is not None:
            error.file = os.fspath(file)
        raise
    except MemoryError as error:
        raise OnnxFoldError("there is not enough memory for it", file=file) from error


def suggestion(name: str, known: Collection[str], most: int = 12) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or some."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known)[:20_000], 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    more = ", ..." if len(known) > most else ""
    return f"; there are {', '.join(sorted(known)[:most])}{more}" if known else "; there are none"


def cut(text: str, longest: int) -> str:
    """Return the text, or its beginning and its end, which says why."""
    return text if len(text) <= longest else f"{text[: longest - 103]}...{text[-100:]}"


def printable(text: str) -> str:
    """Return the text without line ends, and without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ModelError(OnnxFoldError):
    """The model is not valid ONNX: unparsable, truncated, inconsistent, or of hostile size."""


class MissingFileError(ModelError, FileNotFoundError):
    """A file does not exist. It can be caught as Python's ``FileNotFoundError``, too."""

    def __init__(self, *, file: str | os.PathLike[str]) -> None:
        super().__init__("no such file", file=file)
        self.errno = errno.ENOENT
        self.filename = self.file


class ExternalDataError(ModelError):
    """External data is missing, too short, or points outside the model's folder."""


class UsageError(OnnxFoldError):
    """An option or argument cannot be used as given."""


class CheckFailedError(OnnxFoldError):
    """The optimized model does not compute what the original computes."""
