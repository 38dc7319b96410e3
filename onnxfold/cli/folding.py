"""The options that say what is folded and how."""

from __future__ import annotations

from onnxfold.cli.arguments import LEVEL, completed, named, option, section, together
from onnxfold.options import named_shape


def names_of_rules() -> list[str]:
    """Return the names of all rule sets and rules, for completion."""
    from onnxfold.rewrite.rule import available_rule_sets

    sets = available_rule_sets()
    return [*(s.name for s in sets), *(rule.name for s in sets for rule in s)]


what_is_folded = section(
    "What is folded",
    option("--precision"),
    option("--fold-all"),
    option("--fold-quantized"),
    option("--max-growth"),
    option("--memory-limit"),
    option("--keep", metavar="GLOB|OP"),
    option("--fold", metavar="GLOB|OP"),
)
"""Options that say which constants are folded."""

_rule_name = {
    "metavar": "NAME",
    "shell_complete": completed("onnxfold.cli.folding:names_of_rules"),
}
folding_options = together(
    section(
        "Level and rules",
        LEVEL,
        option("--target"),
        option("--enable", **_rule_name),
        option("--disable", **_rule_name),
        option("--rules", metavar="FILE", help="Also use the rules of a Python file."),
        option(
            "--passes",
            metavar="A,B,C",
            type=lambda text: [name.strip() for name in text.split(",")],
            shell_complete=completed("onnxfold.passes:all_passes"),
        ),
    ),
    section(
        "Sizes and shapes",
        option("--dim", "dims"),
        named(
            named_shape,
            "--input-shape",
            "input_shapes",
            metavar="NAME:D,D,...",
            help="Fix the shape of an input: x:1,3,224,224; -1 leaves a size as it is",
        ),
        option("--keep-dim", "keep_dims", metavar="NAME"),
        option("--value-info"),
    ),
    what_is_folded,
)
"""The options of an optimization, see `onnxfold.options.OptionArguments`."""
