"""Helpers of rules: ordinary functions of what has been matched, made terms."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.analysis.symbolic import NotKnown
from onnxfold.rewrite.matched import Matched, plain_number
from onnxfold.rewrite.patterns import AttributeVariable, Expression, OpVariable
from onnxfold.rewrite.terms import UNKNOWN, Term

if TYPE_CHECKING:
    from onnxfold.rewrite.match import Match


def given(function: Callable[..., Any]) -> Given:
    """Make a function of what has been matched a term. A decorator::

        @given
        def flat(y: Matched) -> tuple[int, int]:
            return -1, y.shape[0]

    ``flat`` in a rule is called with what the rule's variable ``y`` has matched; ``flat(w)`` with
    what ``w`` has. Arguments come first, parameters without one are looked up by name; ``result``
    is the first value that is replaced. The function gets

    - for a value, or an op of the pattern, a `onnxfold.rewrite.matched.Matched`;
    - for a variadic variable a tuple of them;
    - for an attribute variable, or any other term, its value.

    A parameter with the default None is None where the input is omitted, or the rule has no such
    variable. Where the function asks for what is not known, or gives None, the rule does not match.
    Called with ordinary values only, it is an ordinary function.
    """
    return Given(function)


class ByName:
    """The variable of a rule that has a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Given(Term):
    """A function that is called once a rule has matched. Made by `given`."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[object, ...] = ()) -> None:
        self.function = function
        code = function.__code__
        defaults = function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        self._subjects = (*arguments, *map(ByName, names[len(arguments) :]))
        first = len(names) - len(defaults)
        self._required = [k < first or k >= len(names) for k in range(len(self._subjects))]
        self._defaults = [
            None if required else defaults[k - first] for k, required in enumerate(self._required)
        ]

    def __call__(self, *arguments: Any) -> Any:
        """A term of these arguments; of ordinary values, what the function gives."""
        if any(_is_open(argument) for argument in arguments):
            return Given(self.function, arguments)
        return self.function(*arguments)

    def evaluate(self, match: Match) -> Any:
        """Call the function, unless something that it needs is not known or not there."""
        values = []
        try:
            for subject, required, default in zip(
                self._subjects, self._required, self._defaults, strict=True
            ):
                value = _resolve(subject, match)
                if value is None and required:
                    return UNKNOWN
                values.append(default if value is None else value)
            found = self.function(*values)
        except NotKnown:
            return UNKNOWN
        return UNKNOWN if found is None else found

    def variables(self) -> Iterator[object]:
        """What must be bound."""
        for subject, required in zip(self._subjects, self._required, strict=True):
            if required:
                yield from _variables(subject)

    def __repr__(self) -> str:
        if self.function.__name__ == "<lambda>":
            return _text_of(self.function)
        name = self.function.__name__.strip("_<>")
        return f"{name}({', '.join(map(repr, self._subjects))})"


def _is_open(argument: object) -> bool:
    """True for what has a value once a rule has matched."""
    if isinstance(argument, (list, tuple)):
        return any(map(_is_open, argument))
    return isinstance(argument, (Term, Expression, OpVariable))


def _resolve(subject: object, match: Match) -> Any:
    if isinstance(subject, ByName):
        subject = match.names.get(subject.name)
    if isinstance(subject, (Expression, OpVariable)):
        return _seen(match.bound(subject), match)
    if isinstance(subject, AttributeVariable):
        return plain_number(match.bindings[subject])
    if isinstance(subject, Term):
        value = subject.evaluate(match)
        if value is UNKNOWN:
            raise NotKnown
        return value
    if isinstance(subject, (list, tuple)):
        return tuple(_resolve(each, match) for each in subject)
    return subject


def _seen(found: Any, match: Match) -> Any:
    if found is None:
        return None
    if isinstance(found, tuple):
        return tuple(_seen(each, match) for each in found)
    # a value is asked for first: that anything is no ir.Node takes Python long to say
    return Matched(found if isinstance(found, ir.Value) else found.outputs[0], match.facts)


def _text_of(function: Callable[..., Any]) -> str:
    """The source text of a lambda."""
    code = function.__code__
    tree = _tree_of(code.co_filename)
    names = list(code.co_varnames[: code.co_argcount])
    for node in ast.walk(tree) if tree is not None else ():
        if (
            isinstance(node, ast.Lambda)
            and node.lineno == code.co_firstlineno
            and [argument.arg for argument in node.args.args] == names
        ):
            return ast.unparse(node.body)
    return f"lambda {', '.join(names)}"


@functools.lru_cache(maxsize=8)
def _tree_of(file: str) -> ast.Module | None:
    lines = linecache.getlines(file)
    return ast.parse("".join(lines)) if lines else None


def _variables(subject: object) -> Iterator[object]:
    if isinstance(subject, (list, tuple)):
        for each in subject:
            yield from _variables(each)
    elif isinstance(subject, Term):
        yield from subject.variables()
    elif isinstance(subject, (ByName, Expression, OpVariable)):
        yield subject
