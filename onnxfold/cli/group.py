"""`onnxfold` itself: its commands, and which of them a command line means."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from onnxfold.cli.adapters import adapters
from onnxfold.cli.batch import batch
from onnxfold.cli.bench import bench
from onnxfold.cli.compare import compare
from onnxfold.cli.explain import explain
from onnxfold.cli.inspect import inspect
from onnxfold.cli.lists import list_passes, list_rules
from onnxfold.cli.optimize import optimize
from onnxfold.cli.output import EXIT_ERROR
from onnxfold.cli.reduce import reduce
from onnxfold.cli.split import split
from onnxfold.cli.tune import tune
from onnxfold.errors import spelled

_GROUPS = {
    "Optimize": (optimize, batch, tune),
    "Understand": (compare, inspect, explain, bench, reduce),
    "Runtime constants": (split, adapters),
    "Lists": (list_rules, list_passes),
}
_EXAMPLES = """\b
Examples:
  onnxfold model.onnx smaller.onnx
  onnxfold optimize model.onnx -o model.onnx --check 3
  onnxfold compare model.onnx smaller.onnx --bisect"""


class OptimizeByDefault(click.Group):
    """`onnxfold IN OUT` is `onnxfold optimize IN OUT`, as users of other optimizers expect."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by subject, each with its whole summary."""
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(c.name or "", (c.help or "").partition("\n")[0]) for c in commands]
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the command in front where the first word is a file or an option of it."""
        if args and self._begins_optimize(args[0]):
            args = ["optimize", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; messages spell its arguments as its options, until it has ended."""
        found = super().resolve_command(ctx, args)
        commands = [*self.commands.values(), *filter(None, [found[1]])]
        params = (param for command in commands for param in command.params)
        ctx.with_resource(spelled({p.name: max(p.opts, key=len) for p in params if p.name}))
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands; where there is none, what else may be the first word: a file, an option."""
        found = super().shell_complete(ctx, incomplete)
        if found or not incomplete:
            return found
        if incomplete.startswith("-"):
            return optimize.shell_complete(click.Context(optimize, parent=ctx), incomplete)
        return [CompletionItem(incomplete, type="file")]

    def _begins_optimize(self, word: str) -> bool:
        if word in self.commands:
            return False
        if word.startswith("-"):
            return word not in {"--help", "-h", "--version"}
        return "." in word or os.sep in word or os.path.exists(word)


@click.group(
    cls=OptimizeByDefault,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXAMPLES,
)
@click.version_option(package_name="onnxfold", message="%(package)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Precompute everything in an ONNX model that does not depend on its inputs.

    The result is equal bit for bit. `onnxfold IN OUT` is short for `onnxfold optimize IN OUT`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(EXIT_ERROR)


for _command in sum(_GROUPS.values(), ()):
    cli.add_command(_command)
