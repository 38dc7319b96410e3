"""`onnxfold rules` and `passes`: what there is to choose from."""

from __future__ import annotations

import click

from onnxfold.cli.arguments import PATH
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, write, write_json


@click.group(name="rules", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
@click.pass_context
def list_rules(context: click.Context, as_json: bool) -> None:
    """List the rewrite rules, by rule set; `rules check` certifies your own."""
    if context.invoked_subcommand is not None:
        return
    from onnxfold.rewrite.rule import available_rule_sets

    sets = available_rule_sets()
    if as_json:
        write_json({s.name: {rule.name: rule.doc for rule in s} for s in sets})
        return
    write("\n\n".join(str(s) + ("\n(opt-in)" if s.optional else "") for s in sets) + "\n")


@list_rules.command(name="check")
@click.argument("file", type=PATH)
def check_rules(file: str) -> int:
    """Certify the rules of FILE (.py) by the table of models beside it (.txt).

    Exit code 0: all are right; 1: one is not; 2: bad input.
    """
    from onnxfold.testing import certificates

    code = EXIT_OK
    for certificate in certificates(file):
        write(f"{certificate}\n")
        code = EXIT_DIFFERENT if certificate.faults else code
    return code


@click.command(name="passes")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def list_passes(as_json: bool) -> None:
    """List the passes that --passes takes."""
    from onnxfold.passes import all_passes

    known = all_passes()
    if as_json:
        write_json({name: info.doc for name, info in known.items()})
        return
    width = max(map(len, known))
    write("".join(f"{name:{width}}  {info.doc}\n" for name, info in known.items()))
