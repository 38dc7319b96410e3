"""Options that several commands share, and the parsers of their values."""

from __future__ import annotations

import functools
import logging
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from onnxfold.api.options import (
    CheckedOptionArguments,
    Options,
    SplitArguments,
    byte_size,
    named_shape,
)
from onnxfold.api.signatures import entries, hints_of
from onnxfold.support.errors import UsageError

PATH = click.Path(readable=False)
FOLDER = click.Path(readable=False, file_okay=False)
"""Types of options whose values are paths. Shells complete a path of a file, or of a folder.

The path may be a URL, and it need not exist.
"""

Command = TypeVar("Command", bound=Callable[..., Any])
flag = functools.partial(click.option, is_flag=True)


def _parser_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the click type of the values that a parser accepts.

    click adds the name of the option to the message of the parser's UsageError.
    """

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise click.BadParameter(str(error)) from None

    return convert


def _dimension(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isdecimal():
        raise UsageError(f"{text!r} is not of the form batch=2")
    return name, int(size)


size_in_bytes = _parser_type(byte_size)
"""The type of a number of bytes, see `onnxfold.api.options.byte_size`."""


def repeatable(*names: str, help: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return an option that may be given several times.

    Args:
        names: The names of the option.
        help: The help text, which is extended by "may be repeated".
        attributes: Further keywords of `click.option`.
    """
    text = f"{help.removesuffix('.')}; may be repeated."
    return click.option(*names, multiple=True, help=text, **attributes)


def mapping(
    parse: Callable[[str], Any], *names: str, **attributes: Any
) -> Callable[[Command], Command]:
    """Return a repeatable option with a dictionary as its value.

    Args:
        parse: The parser of one text, which returns a name and a value.
        names: The names of the option.
        attributes: Further keywords of `repeatable`.
    """
    return repeatable(
        *names, type=_parser_type(parse), callback=lambda _, __, pairs: dict(pairs), **attributes
    )


def sizes(*names: str, help: str) -> Callable[[Command], Command]:
    """Return an option for sizes of dimensions by name, such as batch=2."""
    return mapping(_dimension, *names, metavar="NAME=SIZE", help=help)


def number(
    name: str, kind: click.IntRange | click.FloatRange, default: float | None, text: str
) -> Callable[[Command], Command]:
    """Return an option for a count or a number of seconds.

    The help of the option shows the default unless it is None.
    """
    metavar = "N" if isinstance(kind, click.IntRange) else "S"
    is_shown = default is not None
    return click.option(
        name, type=kind, metavar=metavar, default=default, show_default=is_shown, help=text
    )


def _set_verbosity(ctx: click.Context, param: click.Parameter, verbose: bool) -> bool:
    if verbose:
        logging.getLogger("onnxfold").setLevel(logging.DEBUG)
    return verbose


def option_group(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


JSON = flag("--json", "as_json", help="Print one JSON document instead of text.")
output_options = option_group(
    JSON,
    flag(
        "-v",
        "--verbose",
        expose_value=False,
        callback=_set_verbosity,
        help="Print more details, log progress, and show the traceback of a bug.",
    ),
)
"""The options ``--json`` and ``--verbose``, which all commands for models share."""


def completer(names: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a function that completes the last of several names separated by commas.

    Args:
        names: The path of the collection of names, or of a function that returns the collection.
            The path has the form ``"package.module:name"``.
    """

    def complete(ctx: click.Context, param: click.Parameter, text: str) -> list[str]:
        prefix = text[: text.rfind(",") + 1]
        resolved = pkgutil.resolve_name(names)
        candidates = resolved() if callable(resolved) else resolved
        return [prefix + name for name in candidates if (prefix + name).startswith(text)]

    return complete


class SectionedCommand(click.Command):
    """A command whose help shows its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section. Options without a section are in the last one."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Other options"), []).append(record)
        sections["Other options"] = sections.pop("Other options")
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def section(title: str, *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, in a section of its help."""

    def decorate(command: Command) -> Command:
        previous_count = len(getattr(command, "__click_params__", ()))
        command = option_group(*options)(command)
        for param in command.__click_params__[previous_count:]:  # type: ignore[attr-defined]
            param.section = title
        return command

    return decorate


_HINTS = hints_of(CheckedOptionArguments) | hints_of(SplitArguments)
_TEXTS = entries(CheckedOptionArguments) | entries(SplitArguments)


def option(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return the option for an argument that `onnxfold.api.options` declares.

    The declaration determines the type, the default and the help of the option.

    Args:
        names: The names of the option. The last one is the name of the argument, with or without
            dashes.
        attributes: Keywords of `click.option`, which override those from the declaration.
    """
    argument = names[-1].lstrip("-").replace("-", "_")
    hint = _HINTS[argument]
    kinds = [hint, *get_args(hint)]
    attributes = {"help": _TEXTS.get(argument, ""), **attributes}
    if Mapping[str, int] in kinds:
        return sizes(*names, **attributes)
    if get_origin(hint) in (Iterable, Sequence) or {str, Sequence[str]}.issubset(kinds):
        return repeatable(*names, **{"type": None if str in kinds else PATH, **attributes})
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    defaults: dict[str, Any] = {"type": PATH, "metavar": "PATH"}
    if choices:
        texts = [choice for choice in choices if isinstance(choice, str)]
        choice_type = click.Choice(texts) if texts else click.IntRange(choices[0], choices[-1])
        defaults = {"type": choice_type}
    elif hint is bool:
        defaults = {"is_flag": True}
    elif int in kinds and str in kinds:
        defaults = {"type": size_in_bytes, "metavar": "BYTES"}
    elif int in kinds or float in kinds:
        defaults = {"type": (click.IntRange if int in kinds else click.FloatRange)(min=0)}
    default = getattr(Options, argument, False if hint is bool else None)
    defaults |= {"default": default, "show_default": isinstance(default, str)}
    return click.option(*names, **{**defaults, **attributes})


QUIET = flag("-q", "--quiet", help="Print only errors.")
LEVEL = option(
    "-O",
    "--level",
    default=lambda: 1 if click.get_current_context().params.get("target") is None else 2,
)
OPS = option("--ops", metavar="FILE", help="Python file with definitions of custom ops.")
REPORT = click.option(
    "--report",
    type=PATH,
    metavar="PAGE.html",
    help="Also write a report page, or only its data if the name ends in .json.",
)
PROVIDERS = repeatable(
    "--provider",
    "providers",
    metavar="NAME",
    shell_complete=completer("onnxruntime:get_available_providers"),
    help="Execution provider of onnxruntime, by default CPUExecutionProvider",
)
_COMPARISON = (
    option("--feeds"),
    option("--rtol"),
    option("--atol"),
    option("--ulp", metavar="N"),
    option("--custom-ops", metavar="LIBRARY"),
)
comparison_options = section("Inputs and tolerances", *_COMPARISON)
"""Options for the inputs and tolerances of a comparison. By default, each is None or empty."""


def names_of_rules() -> list[str]:
    """Return the names of all available rule sets and of their rules, for completion."""
    from onnxfold.rewrite.rule import available_rule_sets

    sets = available_rule_sets()
    return [*(s.name for s in sets), *(rule.name for s in sets for rule in s)]


folding_options = section(
    "Folded constants",
    option("--precision"),
    option("--fold-all"),
    option("--fold-quantized"),
    option("--max-growth"),
    option("--memory-limit"),
    option("--keep", metavar="GLOB|OP"),
    option("--fold", metavar="GLOB|OP"),
)
"""Options that select the constants to fold."""

_RULE_NAME = {
    "metavar": "NAME",
    "shell_complete": completer("onnxfold.cli.arguments:names_of_rules"),
}
optimization_options = option_group(
    section(
        "Level and rules",
        LEVEL,
        option(
            "--target",
            type=str,
            metavar="NAME",
            shell_complete=completer("onnxfold.api.targets:target_names"),
        ),
        option("--enable", **_RULE_NAME),
        option("--disable", **_RULE_NAME),
        option("--rules", metavar="FILE", help="Also use the rules of a Python file."),
        OPS,
        option(
            "--passes",
            metavar="A,B,C",
            type=lambda text: [name.strip() for name in text.split(",")],
            shell_complete=completer("onnxfold.passes:all_passes"),
        ),
    ),
    section(
        "Sizes and shapes",
        option("--dim", "dims"),
        mapping(
            named_shape,
            "--input-shape",
            "input_shapes",
            metavar="NAME:D,D,...",
            help="Fix the shape of an input, such as x:1,3,224,224; -1 does not change a size",
        ),
        option("--keep-dim", "keep_dims", metavar="NAME"),
        option("--value-info"),
    ),
    folding_options,
    section(
        "Check", option("--check", metavar="N"), *_COMPARISON, option("--check-dim", "check_dims")
    ),
    option("--keep-metadata"),
    QUIET,
    output_options,
)
"""The options of an optimization, its check and its output, see `onnxfold.api.options`."""

runtime_options = section(
    "Runtime constants",
    option("--runtime-const", "runtime_constants", metavar="GLOB"),
    option("--overridable"),
    option("--max-cache", type=size_in_bytes, metavar="BYTES"),
    click.option(
        "--backend",
        metavar="[auto|iree|onnx-mlir|onnxruntime]",
        default="auto",
        show_default=True,
        shell_complete=completer("onnxfold.runtime.backends.base:NAMES"),
        help="Backend that runs runtime_fold. iree and onnx-mlir compile it; auto uses the kernels "
        "of a bundle that are faster than onnxruntime.",
    ),
    option("--backend-option", "backend_options", metavar="OPTION"),
    option(
        "--target-cpu",
        metavar="LEVEL",
        shell_complete=completer("onnxfold.runtime.backends.targets:TARGETS"),
    ),
)
"""Options of `split` and `bench` for runtime constants and the backend that folds them."""
