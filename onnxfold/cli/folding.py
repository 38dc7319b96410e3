"""The options that say what is folded and how, and the arguments that they are in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from onnxfold.cli.arguments import (
    PATH,
    Command,
    completed,
    dimension,
    input_shape,
    section,
    size_in_bytes,
)


def _rules() -> Iterable[str]:
    from onnxfold.rewrite.rule import available_rule_sets

    sets = available_rule_sets()
    return [*(s.name for s in sets), *(rule.name for s in sets for rule in s)]


def _passes() -> Iterable[str]:
    from onnxfold.passes import all_passes

    return all_passes()


_SECTIONS = (
    section(
        "Level and rules",
        click.option(
            "-O",
            "--level",
            type=click.IntRange(0, 2),
            default=1,
            show_default=True,
            help="0: fold constants; 1: also rules that keep every bit; 2: also inexact rules.",
        ),
        click.option(
            "--target",
            type=click.Choice(["onnxruntime"]),
            help="Also use ops that only this runtime has; needs -O2.",
        ),
        click.option(
            "--enable",
            multiple=True,
            metavar="NAME",
            shell_complete=completed(_rules),
            help="Use an opt-in rule or rule set; repeatable.",
        ),
        click.option(
            "--disable",
            multiple=True,
            metavar="NAME",
            shell_complete=completed(_rules),
            help="Leave out a rule or rule set; repeatable.",
        ),
        click.option(
            "--rules",
            type=PATH,
            multiple=True,
            metavar="FILE",
            help="Also use the rules in a Python file; repeatable.",
        ),
        click.option(
            "--passes",
            metavar="A,B,C",
            shell_complete=completed(_passes),
            help="Run these passes, in this order, instead of the level's own.",
        ),
    ),
    section(
        "Sizes and shapes",
        click.option(
            "--dim",
            "dims",
            type=dimension,
            multiple=True,
            metavar="NAME=SIZE",
            help="Fix a symbolic dimension; may be repeated.",
        ),
        click.option(
            "--input-shape",
            "input_shapes",
            type=input_shape,
            multiple=True,
            metavar="NAME:D,D,...",
            help="Fix the shape of an input: x:1,3,224,224; -1 leaves a size as it is; repeatable.",
        ),
        click.option(
            "--keep-dim",
            "keep_dims",
            multiple=True,
            metavar="NAME",
            help="Leave a dimension dynamic whatever --input-shape says; may be repeated.",
        ),
        click.option(
            "--value-info",
            is_flag=True,
            help="Write the inferred shapes of all values.  [default: those that inference misses]",
        ),
    ),
    section(
        "What is folded",
        click.option(
            "--precision",
            type=click.Choice(["exact", "wide"]),
            default="exact",
            show_default=True,
            help="wide: compute chains of constants in 64 bits and round once, at their end.",
        ),
        click.option(
            "--fold-all",
            is_flag=True,
            help="Fold everything that can be evaluated, whatever its size.",
        ),
        click.option(
            "--fold-quantized", is_flag=True, help="Fold DequantizeLinear of weights too."
        ),
        click.option(
            "--max-growth",
            type=size_in_bytes,
            metavar="BYTES",
            help="Bytes by which the file may grow where that removes nodes; 0: no growth.  "
            "[default: 64 KiB or 1 %, whichever is larger]",
        ),
        click.option(
            "--memory-limit",
            type=size_in_bytes,
            metavar="BYTES",
            help="Bytes of intermediate results to hold in memory, such as 512MB; more goes to "
            "disk. Also the limit for the evaluation of one node.",
        ),
        click.option(
            "--keep",
            multiple=True,
            metavar="GLOB|OP",
            help="Leave nodes that make a value whose name matches, or that have this op type; "
            "may be repeated.",
        ),
        click.option(
            "--fold",
            multiple=True,
            metavar="GLOB|OP",
            help="Fold values whose name matches, or that nodes of this op type make, whatever "
            "their size; may be repeated.",
        ),
    ),
)


def folding_options(command: Command) -> Command:
    """Add the options that `folding_arguments` takes."""
    for add in reversed(_SECTIONS):
        command = add(command)
    return command


def folding_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Of what a command is called with, the options by keyword; see `onnxfold.options.Options`."""
    passes = given["passes"]
    return {
        **given,
        "dims": dict(given["dims"]),
        "input_shapes": dict(given["input_shapes"]),
        "passes": None if passes is None else [name.strip() for name in passes.split(",")],
    }
