"""The options that say what is folded and how."""

from __future__ import annotations

import click

from onnxfold.cli.arguments import (
    LEVEL,
    PATH,
    completed,
    named,
    section,
    several,
    size_in_bytes,
    sizes,
    together,
)
from onnxfold.options import named_shape


def names_of_rules() -> list[str]:
    """Return the names of all rule sets and rules, for completion."""
    from onnxfold.rewrite.rule import available_rule_sets

    sets = available_rule_sets()
    return [*(s.name for s in sets), *(rule.name for s in sets for rule in s)]


what_is_folded = section(
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
    click.option("--fold-quantized", is_flag=True, help="Fold DequantizeLinear of weights too."),
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
    several(
        "--keep",
        metavar="GLOB|OP",
        help="Leave nodes that make a value whose name matches, or that have this op type",
    ),
    several(
        "--fold",
        metavar="GLOB|OP",
        help="Fold values whose name matches, or that nodes of this op type make, whatever "
        "their size",
    ),
)
"""Options that say which constants are folded."""

folding_options = together(
    section(
        "Level and rules",
        LEVEL,
        click.option(
            "--target",
            type=click.Choice(["onnxruntime"]),
            help="Also use ops that only this runtime has; needs -O2.",
        ),
        several(
            "--enable",
            metavar="NAME",
            shell_complete=completed("onnxfold.cli.folding:names_of_rules"),
            help="Use an opt-in rule or rule set",
        ),
        several(
            "--disable",
            metavar="NAME",
            shell_complete=completed("onnxfold.cli.folding:names_of_rules"),
            help="Leave out a rule or rule set",
        ),
        several("--rules", type=PATH, metavar="FILE", help="Also use the rules in a Python file"),
        click.option(
            "--passes",
            metavar="A,B,C",
            type=lambda text: [name.strip() for name in text.split(",")],
            shell_complete=completed("onnxfold.passes:all_passes"),
            help="Run these passes, in this order, instead of the level's own.",
        ),
    ),
    section(
        "Sizes and shapes",
        sizes("--dim", "dims", help="Fix a symbolic dimension"),
        named(
            named_shape,
            "--input-shape",
            "input_shapes",
            metavar="NAME:D,D,...",
            help="Fix the shape of an input: x:1,3,224,224; -1 leaves a size as it is",
        ),
        several(
            "--keep-dim",
            "keep_dims",
            metavar="NAME",
            help="Leave a dimension dynamic whatever --input-shape says",
        ),
        click.option(
            "--value-info",
            is_flag=True,
            help="Write the inferred shapes of all values.  [default: those that inference misses]",
        ),
    ),
    what_is_folded,
)
"""The options of an optimization, see `onnxfold.options.Options`."""
