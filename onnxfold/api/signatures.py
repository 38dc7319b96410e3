"""Check the arguments of public functions against annotations, and document their keywords.

`checked` raises an error for arguments that contradict a function's annotations. It also adds the
keywords of a TypedDict to the function's docstring and signature.

The modules of some annotations are not imported at run time, because importing them is slow. The
annotations therefore remain strings. `hints_of` evaluates them when they are first needed.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import math
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from onnxfold.support.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
Progress = Callable[[str, int, int], None]
"""A function that is called with the name of a stage, its completed work and its total work."""
Positive = Annotated[int, 1]
Size = Annotated[int, -1]
"""A size for a dimension. -1 does not change the dimension."""

_UNIONS = (typing.Union, types.UnionType)
_NUMBERS = {int: (int,), float: (int, float)}
# The default that a signature shows for a keyword without a class attribute in `Options`. `Options`
# has no such field, or the field has a default_factory.
_UNSET = type("_Unset", (), {"__repr__": lambda _: "..."})()


def checked(function: Function) -> Function:
    """Decorate a function to raise a UsageError for arguments that contradict its annotations.

    The keywords of ``**options: Unpack[...]`` are added to the section "Args:" of the docstring.
    If they are options of onnxfold, they are also added to the signature.
    """
    positional = inspect.getfullargspec(function).args

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        hints = hints_of(function)
        for name, value in (*zip(positional, args, strict=False), *kwargs.items()):
            hint = hints.get(name, Any)
            if type(value) not in _unconditional_types(hint):
                for problem in problems(name, value, hint):
                    raise UsageError(problem)
        return function(*args, **kwargs)

    keywords = _keywords(function)
    texts = {} if keywords is None else entries(keywords)
    keyword_section = "".join(
        textwrap.fill(f"    {name}: {text}", 96, subsequent_indent=" " * 8) + "\n"
        for name, text in texts.items()
    )
    call.__doc__ = re.sub(
        r"^Args:\n(?:.+\n)*",
        lambda args: args[0] + keyword_section,
        inspect.getdoc(function) or "",
        flags=re.MULTILINE,
    )
    call.__signature__ = _signature(function)  # type: ignore[attr-defined]
    return typing.cast(Function, call)


@functools.cache
def hints_of(owner: Any) -> dict[str, Any]:
    """Return the annotated types of a function or a class, by name of the argument or field.

    The result includes a function's return type and the keys of its TypedDict of keywords. A name
    that is imported only for type checkers becomes a type variable, see `problems`.
    """
    keywords = _keywords(owner)
    hints = {} if keywords is None else dict(hints_of(keywords))
    for name, annotation in owner.__annotations__.items():
        module = getattr(annotation, "__forward_module__", None) or owner.__module__
        text = getattr(annotation, "__forward_arg__", annotation)
        if not text.startswith("Unpack["):
            hints[name] = eval(text, {}, _Names(vars(sys.modules[module])))
    return hints


class _Names(dict[str, Any]):
    """The names of a module and the builtins. Other names are type variables."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, None) or TypeVar(name)


@functools.cache
def _unconditional_types(hint: Any) -> Collection[object]:
    """Return the alternatives of a type hint, except numbers.

    An argument is valid regardless of its value if its class is one of the alternatives.
    """
    inner = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    return frozenset(inner) - _NUMBERS.keys()


def problems(name: str, value: Any, hint: Any, minimum: float = 0) -> Iterator[str]:
    """Yield the reasons why the value of an argument is invalid.

    A type variable represents a class of that name, which need not be imported. Numbers must be
    finite and at least ``minimum``. The second argument of ``Annotated`` replaces the minimum.
    """
    kind = typing.get_origin(hint) or hint
    inner = typing.get_args(hint)
    if kind is Annotated:
        yield from problems(name, value, *inner)
    elif kind in _UNIONS:
        first_problem = ""
        for alternative in inner:
            if _is_instance(value, alternative):
                problem = next(problems(name, value, alternative), "")
                if not problem:
                    return
                first_problem = first_problem or problem
        yield first_problem or _wrong_type(name, value, hint)
    elif not _is_instance(value, hint):
        yield _wrong_type(name, value, hint)
    elif kind in _NUMBERS and not minimum <= value < math.inf:
        yield f"{name} must be a finite number of at least {minimum}, got {value}"
    elif isinstance(value, Mapping) and len(inner) == 2:
        for key, each in value.items():
            yield from problems(f"a name in {name}", key, inner[0])
            yield from problems(f"{name}[{key!r}]", each, inner[1])
    elif isinstance(value, Collection) and isinstance(kind, type) and inner:
        is_fixed_tuple = kind is tuple and ... not in inner
        element_hints = inner if is_fixed_tuple else itertools.repeat(inner[0])
        for k, (element, element_hint) in enumerate(zip(value, element_hints, strict=False)):
            yield from problems(f"{name}[{k}]", element, element_hint)


def _wrong_type(name: str, value: object, hint: Any) -> str:
    is_short = isinstance(value, (bool, int, float, str, type(None)))
    got = repr(value) if is_short else type(value).__name__
    return f"{name} must be {_text_of(hint)}, got {got}"


def _text_of(hint: Any) -> str:
    kind = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if kind is Annotated:
        return _text_of(inner[0])
    if kind in (*_UNIONS, typing.Literal):
        return " or ".join(map(_text_of, inner))
    # NoneType is shown as None
    name = getattr(kind or hint, "__name__", str(hint)).removesuffix("Type")
    is_generic = inner and isinstance(kind, type) and not isinstance(inner[0], list)
    return f"{name}[{', '.join(map(_text_of, inner))}]" if is_generic else name


def _is_instance(value: object, hint: Any) -> bool:
    """Return whether a value matches a type hint, regardless of its elements and of a minimum."""
    kind = typing.get_origin(hint) or hint
    inner = typing.get_args(hint)
    if kind is Any:
        return True
    if kind is Annotated:
        return _is_instance(value, inner[0])
    if kind is typing.Literal:
        return (value, type(value)) in [(each, type(each)) for each in inner]
    if isinstance(kind, TypeVar):
        return kind.__name__ in [each.__name__ for each in type(value).__mro__]
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    # a string is a sequence of strings, but passing one instead of a list is a mistake
    is_single_string = inner and isinstance(value, (str, bytes))
    expected = Mapping if typing.is_typeddict(kind) else kind
    return isinstance(value, expected) and not is_single_string


def entries(keywords: Any) -> dict[str, str]:
    """Return the documentation of the keys of a TypedDict, by name.

    The texts come from the sections "Args:" in the docstrings of all TypedDicts of its module. Keys
    without a text are omitted.
    """
    texts = {}
    for each in filter(typing.is_typeddict, vars(sys.modules[keywords.__module__]).values()):
        _, _, section = (inspect.getdoc(each) or "").partition("\nArgs:\n")
        for entry in re.findall(r"^ {4}\w+: .*(?:\n {8}.*)*", section, re.MULTILINE):
            name, _, text = " ".join(entry.split()).partition(": ")
            texts[name] = text
    return {name: text for name, text in texts.items() if name in keywords.__annotations__}


def _keywords(function: Any) -> Any:
    """Return the TypedDict of the keywords of a function.

    The result is None if no annotation is an ``Unpack``, or if the module of the function does not
    import the TypedDict at run time.
    """
    for annotation in map(str, function.__annotations__.values()):
        if annotation.startswith("Unpack["):
            name = annotation.removeprefix("Unpack[").removesuffix("]")
            return function.__globals__.get(name)
    return None


def _signature(function: Any) -> inspect.Signature:
    """Return the signature of a function for ``help`` and editors.

    If the keywords of the function are options of onnxfold, each is a parameter of the signature.
    """
    signature = inspect.signature(function)
    keywords = _keywords(function)
    defaults = keywords and getattr(sys.modules[keywords.__module__], "Options", None)
    if defaults is None:  # the function has no keywords or they are not options
        return signature
    *parameters, keyword_parameter = signature.parameters.values()
    for name, hint in keywords.__annotations__.items():
        default = getattr(defaults, name, _UNSET)
        annotation = getattr(hint, "__forward_arg__", hint)
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            keyword_parameter.replace(name=name, kind=kind, default=default, annotation=annotation)
        )
    return signature.replace(parameters=parameters)
