"""`onnxfold rules` and `passes`: what there is to choose from."""

from __future__ import annotations

import click

from onnxfold.cli.output import write, write_json


@click.command(name="rules")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
def list_rules(as_json: bool) -> None:
    """List the rewrite rules, by rule set."""
    from onnxfold.rewrite.rule import available_rule_sets

    sets = available_rule_sets()
    if as_json:
        write_json({s.name: {rule.name: rule.doc for rule in s} for s in sets})
        return
    write("\n\n".join(str(s) + ("\n(opt-in)" if s.optional else "") for s in sets) + "\n")


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
