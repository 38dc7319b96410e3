"""Check the arguments of functions against their annotations, and list keywords in docstrings."""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import math
import numbers
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from onnxfold.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
Positive = Annotated[int, 1]
Size = Annotated[int, -1]
"""Of a dimension; -1 leaves it as it is."""

_UNIONS = (typing.Union, types.UnionType)
_NUMBERS = {int: numbers.Integral, float: numbers.Real}
"""NumPy's numbers are as good as Python's."""


def checked(function: Function) -> Function:
    """Return a function that raises a UsageError for arguments that its annotations exclude.

    Its docstring lists the keywords of ``**options: Unpack[...]`` as well, by `entries`.
    """
    positional = inspect.getfullargspec(function).args

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        hints = hints_of(function)
        for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
            if name in hints and (wrong := problem(name, value, hints[name])):
                raise UsageError(wrong)
        return function(*args, **kwargs)

    call.__doc__ = _with_keywords(function)
    return typing.cast(Function, call)


@functools.cache
def hints_of(owner: Any) -> dict[str, Any]:
    """Return the types of the arguments of a function, or of the keys of a TypedDict, by name.

    A name that is imported for type checkers only becomes a type variable, see `problem`.
    """
    found: dict[str, Any] = {}
    for name, annotation in owner.__annotations__.items():
        module = getattr(annotation, "__forward_module__", None) or owner.__module__
        text = getattr(annotation, "__forward_arg__", annotation)
        if not text.startswith("Unpack["):
            found[name] = eval(text, {}, _Names(vars(sys.modules[module])))
        elif (keywords := _keywords(owner, text)) is not None:
            found |= hints_of(keywords)
    return found


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or TypeVar(name)


def problem(name: str, value: Any, hint: Any) -> str | None:
    """Return what is wrong with the value of an argument, or None.

    A type variable stands for a class of that name, which may not be loaded. A number is finite and
    at least 0, or at least what an ``Annotated`` type says.
    """
    kind, inner, least = typing.get_origin(hint) or hint, typing.get_args(hint), 0
    if kind is Annotated:
        kind, least = inner
        inner = ()
    if kind in _UNIONS:
        found = [problem(name, value, each) for each in inner]
        if None in found:
            return None
        more = (text for text in found if text and not text.startswith(f"{name} must"))
        return next(more, _wrong_type(name, value, hint))
    if not _is_a(value, kind, inner):
        return _wrong_type(name, value, hint)
    if kind in _NUMBERS and not least <= value < math.inf:
        return f"{name} is {value}, not a finite number from {least} up"
    return next(filter(None, itertools.starmap(problem, _parts(name, value, kind, inner))), None)


def _wrong_type(name: str, value: object, hint: Any) -> str:
    is_short = isinstance(value, (bool, int, float, str, type(None)))
    return (
        f"{name} must be {_text_of(hint)}, got {repr(value) if is_short else type(value).__name__}"
    )


def _text_of(hint: Any) -> str:
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is Annotated:
        return _text_of(inner[0])
    if kind in (*_UNIONS, typing.Literal):
        return " or ".join(map(_text_of, inner))
    name = getattr(kind or hint, "__name__", str(hint)).removesuffix("Type")  # NoneType
    is_generic = inner and isinstance(kind, type) and not isinstance(inner[0], list)
    return f"{name}[{', '.join(map(_text_of, inner))}]" if is_generic else name


def _is_a(value: object, kind: Any, inner: Collection[Any]) -> bool:
    """Return whether a value is of a type, except for what is in it."""
    if kind is Any:
        return True
    if kind is typing.Literal:
        return (value, type(value)) in [(each, type(each)) for each in inner]
    if isinstance(kind, TypeVar):
        return kind.__name__ in [each.__name__ for each in type(value).__mro__]
    if typing.is_typeddict(kind):
        return isinstance(value, Mapping)
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    # one text is no sequence of texts
    return isinstance(value, kind) and not (inner and isinstance(value, (str, bytes)))


def _parts(
    name: str, value: Any, kind: Any, inner: Collection[Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield what is in a container, with its name and type."""
    if not isinstance(kind, type) or not isinstance(value, Collection):
        return
    if isinstance(value, Mapping) and inner:
        of_key, of_value = inner
        yield from ((f"a name in {name}", key, of_key) for key in value)
        yield from ((f"{name}[{key!r}]", each, of_value) for key, each in value.items())
    elif kind is tuple and ... not in inner:
        yield from (
            (f"{name}[{k}]", *each) for k, each in enumerate(zip(value, inner, strict=False))
        )
    elif inner:
        yield from ((f"{name}[{k}]", each, next(iter(inner))) for k, each in enumerate(value))


@functools.cache
def entries(keywords: Any) -> dict[str, str]:
    """Return the documentation of the keys of a TypedDict, by name.

    It is in the section "Args:" of its docstring, and of others of that module that it extends.
    """
    found = {}
    for each in filter(typing.is_typeddict, vars(sys.modules[keywords.__module__]).values()):
        section = re.search(r"^Args:\n((?:.+\n?)*)", inspect.getdoc(each) or "", re.MULTILINE)
        for entry in re.findall(r"^ {4}\w+: .*(?:\n {8}.*)*", section[1] if section else "", re.M):
            name, _, text = entry.strip().partition(": ")
            found[name] = " ".join(text.split())
    return {name: text for name, text in found.items() if name in keywords.__annotations__}


def _keywords(function: Any, annotation: str) -> Any:
    """Return the TypedDict of the keywords of a function; None if only type checkers know it."""
    return function.__globals__.get(annotation.removeprefix("Unpack[").removesuffix("]"))


def _with_keywords(function: Any) -> str | None:
    """Return the docstring of a function, with its keywords at the end of the arguments."""
    unpacked = [text for text in function.__annotations__.values() if text.startswith("Unpack[")]
    listed = "".join(
        textwrap.fill(f"    {name}: {text}", 96, subsequent_indent=" " * 8) + "\n"
        for keywords in filter(None, (_keywords(function, text) for text in unpacked))
        for name, text in entries(keywords).items()
    )
    own = inspect.getdoc(function) or ""
    return re.sub(r"^Args:\n(?:.+\n)*", lambda args: args[0] + listed, own, flags=re.MULTILINE)
