"""Commands that write no optimized model.

`compare`, `inspect`, `explain`, `bench`, `reduce` and `adapters` examine models, bundles and files
of adapters. `rules` and `passes` list the rules and passes, and `rules check` certifies rules.
`doctor` describes the installation.
"""

from __future__ import annotations

from typing import Any

import click

from onnxfold.api.options import matches_any
from onnxfold.cli.arguments import (
    JSON,
    LEVEL,
    PATH,
    PROVIDERS,
    REPORT,
    SectionedCommand,
    comparison_options,
    flag,
    folding_options,
    number,
    optimization_options,
    output_options,
    repeatable,
    runtime_options,
    section,
    sizes,
)
from onnxfold.cli.output import EXIT_DIFFERENT, EXIT_OK, show, with_progress, write, write_json
from onnxfold.support.errors import UsageError


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@number(
    "--seeds",
    click.IntRange(1),
    1,
    "Number of random inputs to compare on; each has different sizes of dynamic dimensions.",
)
@sizes(
    "--dim",
    "dims",
    help="Size of a dynamic dimension, by default the first that runs; x[2] is the unnamed "
    "dimension of axis 2 of input x",
)
@comparison_options
@flag("--exact", help="Require equal bits for half precision, too.")
@PROVIDERS
@REPORT
@flag("--bisect", help="Where outputs differ, find the first internal value that differs.")
@output_options
def compare(a: str, b: str, report: str | None, as_json: bool, **options: Any) -> int:
    """Run two models on the same inputs and compare their outputs.

    Exit code 0: equal bit for bit, or within the tolerance; 1: different; 2: invalid input.
    """
    from onnxfold.tools.comparison import compare as compare_models

    if report is not None:
        from onnxfold.tools.report.page.documents import check_destination, write_compare_page

        check_destination(report, a, b)
    arguments = {name: value for name, value in options.items() if value is not None}
    result = compare_models(a, b, **arguments)
    if report is not None:
        write_compare_page(result, report)
    show(result, as_json)
    return EXIT_OK if result.passed else EXIT_DIFFERENT


@click.command()
@click.argument("model", metavar="MODEL|BUNDLE", type=PATH)
@click.argument("other", type=PATH, required=False)
@flag("--tree", help="Show nodes, weights, MACs, FLOPs and work of each module.")
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    metavar="N",
    help="Number of levels to show with --tree.  [default: as many as 40 rows allow]",
)
@sizes("--dim", "dims", help="Size of a dynamic dimension with --tree, by default 64")
@output_options
def inspect(
    model: str,
    other: str | None,
    tree: bool,
    depth: int | None,
    dims: dict[str, int],
    as_json: bool,
) -> None:
    """Show ops, inputs, outputs, opsets, parameters, bytes and largest tensors.

    For a bundle, show the kernels with their target CPUs, sizes and times, and the kernel of each
    component that runs on this machine. If onnxruntime runs instead, the reason is shown.

    With OTHER, show the differences: ops, interface, opsets, and tensors by name and content. With
    --tree, show parameters, multiply-accumulates (MACs) and floating point operations (FLOPs) of
    the model and of each of its modules.
    """
    if tree and other is not None:
        raise click.UsageError("--tree shows one model; leave out OTHER")
    for option, is_given in (("--depth", depth is not None), ("--dim", bool(dims))):
        if is_given and not tree:
            raise click.UsageError(f"{option} requires --tree")
    from onnxfold.runtime.bundles.bundle import is_bundle

    if is_bundle(model):
        if tree or other is not None:
            reason = "is a bundle; --tree and OTHER are for models, such as its entry.onnx"
            raise UsageError(reason, file=model)
        from onnxfold.tools.report.bundle_contents import take_contents

        show(take_contents(model), as_json)
        return
    from onnxfold.tools.report.inventory import take_difference, take_inventory

    if tree:
        from onnxfold.tools.report.module_tree import take_modules

        show(take_modules(model, dims), as_json, depth=depth)
    elif other is not None:
        show(take_difference(model, other), as_json)
    else:
        show(take_inventory(model), as_json)


@click.command()
@click.argument("model", type=PATH)
@repeatable(
    "--value", "values", metavar="GLOB", help="Show only values or nodes whose name matches"
)
@click.option(
    "--why",
    metavar="NODE",
    help="Explain one node, given by its name or by the name of one of its outputs.",
)
@click.option(
    "--node",
    metavar="NAME",
    help="Show the rules that come closest to a match at this node, and their first failure.",
)
@click.option("--rule", metavar="RULE", help="With --node: show whether this rule matches.")
@LEVEL
@folding_options
@output_options
def explain(
    model: str,
    values: tuple[str, ...],
    why: str | None,
    node: str | None,
    rule: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show why nodes with constant inputs would be folded or kept.

    The column "if folded" is the size of the node's results in the file if the node is folded. The
    column "if kept" is the size of the constant operands that no other node requires in the file.

    --why shows a path from any node to an input on which the node depends. --node and --rule show
    the pattern element or the condition that keeps a rule from rewriting a node.
    """
    if why is not None and (values or node is not None):
        raise click.UsageError("--why explains one node; leave out --value and --node")
    if values and node is not None:
        raise click.UsageError("--node explains rules at one node; leave out --value")
    if rule is not None and node is None:
        raise click.UsageError("--rule requires --node NAME")
    import onnxfold
    from onnxfold.tools.report.explanations import Decisions

    explanation: Any
    if why is not None:
        explanation = onnxfold.why(model, why, **options)
    elif node is not None:
        explanation = onnxfold.explain(model, node=node, rule=rule, **options)
    else:
        decisions = onnxfold.explain(model, **options)
        if values:
            decisions = [
                decision
                for decision in decisions
                if matches_any(decision.value, values) or matches_any(decision.node, values)
            ]
        if values and not decisions:
            reason = f"no constant node matches {' '.join(map(repr, values))}"
            raise UsageError(f"{reason}; --why explains any node", file=model)
        explanation = Decisions(decisions)
    if as_json:
        write_json({"model": model, **explanation.to_dict()})
    else:
        write(explanation.to_text())


@click.command()
@click.argument("sources", metavar="MODEL [MODEL|BUNDLE]...", type=PATH, nargs=-1, required=True)
@comparison_options
@sizes(
    "--dim",
    "dims",
    help="Size of a dynamic dimension, by default 1 for a batch and 16 otherwise, or the first "
    "that runs",
)
@number("--rounds", click.IntRange(1), 20, "Timed runs of each model.")
@repeatable(
    "--threads",
    type=click.IntRange(min=0),
    metavar="N",
    help="Number of threads of onnxruntime, 0 for one per core, by default 1 and 0",
)
@PROVIDERS
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random inputs.")
@runtime_options
@flag(
    "--specialize",
    help="Let onnxruntime pack folded tensors for its kernels: folding is slower, runs are faster.",
)
@output_options
def bench(sources: tuple[str, ...], threads: tuple[int, ...], as_json: bool, **options: Any) -> int:
    """Time models and bundles alternately on the same inputs.

    The table shows the nodes and fused ops after onnxruntime's own optimizations, the time to
    create a session, and the median time of a run. This is CPU time with one thread on the CPU
    provider, and wall time otherwise. The speed relative to the first model is shown if it differs
    from 1 by more than the spread of at least 5 rounds. For a bundle, the cost of folding is shown,
    too. With --runtime-const or --overridable, one MODEL is measured both unchanged and split.

    The exit code is 1 if the outputs of a model differ from those of the first by more than a given
    tolerance.
    """
    from onnxfold.tools.bench.side_by_side import ALL_THREADS, bench_models

    constants = {name: options.pop(name) for name in ("runtime_constants", "overridable")}
    settings = {name: options.pop(name) for name in ("max_cache", "backend_options", "target_cpu")}
    if any(constants.values()):
        options["splitting"] = {name: v for name, v in (constants | settings).items() if v}
    elif any(settings.values()):
        raise click.UsageError(
            "--max-cache, --backend-option and --target-cpu require --runtime-const"
        )
    result = bench_models(sources, threads=threads or (1, ALL_THREADS), **options)
    show(result, as_json)
    return EXIT_DIFFERENT if any(each.within is False for each in result.models) else EXIT_OK


@click.command(
    cls=SectionedCommand,
    epilog="Example: onnxfold reduce model.onnx -o small.onnx -- python fails.py {}",
)
@click.argument("source", metavar="MODEL", type=PATH)
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@section(
    "Failure",
    click.option("-o", "--output", type=PATH, metavar="OUT", required=True, help="File to write."),
    number(
        "--timeout",
        click.FloatRange(0, min_open=True),
        60.0,
        "Seconds after which a run counts as a failure.",
    ),
)
@optimization_options
def reduce(source: str, output: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write a smaller model with the same failure as MODEL, for a bug report.

    Without COMMAND, MODEL runs on onnxruntime, is optimized with the given options, and is compared
    with the result. A failure is an error, a difference beyond the tolerance, a crash or a run that
    exceeds --timeout.

    COMMAND fails if its exit code is not 0, or if it exceeds --timeout. In COMMAND, {} is replaced
    by the path of a model. Without {}, the path is added as the last argument.

    Nodes, inputs and weights are removed as long as the failure is the same. The exit code is 2 if
    MODEL does not fail.
    """
    import onnxfold

    show(with_progress(onnxfold.reduce, source, output, quiet=quiet, **options), as_json, quiet)


@click.command()
@click.argument("bundle", type=PATH)
@click.argument("files", metavar="ADAPTER...", type=PATH, nargs=-1, required=True)
@output_options
def adapters(bundle: str, files: tuple[str, ...], as_json: bool) -> int:
    """Match the tensors of adapters with the runtime constants of a bundle.

    An ADAPTER is a folder written by peft, or a .safetensors, .npz or .onnx_adapter file.

    Exit code 0: all tensors fit; 1: some do not fit; 2: invalid input.
    """
    from onnxfold.runtime.adapter_files import read_adapter
    from onnxfold.runtime.adapter_matching import fits
    from onnxfold.runtime.bundles.bundle import open_bundle

    manifest = open_bundle(bundle).manifest
    matches = {file: fits(read_adapter(file), manifest) for file in files}
    if as_json:
        write_json({file: [vars(fit) for fit in each] for file, each in matches.items()})
    else:
        from onnxfold.support.tables import render
        from onnxfold.tools.report.runtime_tables import adapters_text

        write(render(*adapters_text(manifest, matches)))
    all_match = all(fit.problem is None for each in matches.values() for fit in each)
    return EXIT_OK if all_match else EXIT_DIFFERENT


@click.group(name="rules", invoke_without_command=True)
@JSON
@click.pass_context
def list_rules(context: click.Context, as_json: bool) -> None:
    """List the rewrite rules by rule set. `rules check` certifies your own rules."""
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
    """Certify the rules of FILE, a Python file, with the models of its table.

    The table is in the same folder. It has the same name as FILE with the suffix .txt.

    Exit code 0: all rules are correct; 1: a rule is not correct; 2: invalid input.
    """
    from onnxfold.testing import certificates

    code = EXIT_OK
    for certificate in certificates(file):
        write(f"{certificate}\n")
        code = EXIT_DIFFERENT if certificate.faults else code
    return code


@click.command(name="passes")
@JSON
def list_passes(as_json: bool) -> None:
    """List the names of passes for --passes."""
    from onnxfold.passes import all_passes

    passes = all_passes()
    if as_json:
        write_json({name: info.doc for name, info in passes.items()})
        return
    width = max(map(len, passes))
    write("".join(f"{name:{width}}  {info.doc}\n" for name, info in passes.items()))


@click.command()
@JSON
def doctor(as_json: bool) -> None:
    """Describe the installation and this machine, for bug reports."""
    from onnxfold.tools.diagnostics import diagnosis

    sections = diagnosis()
    if as_json:
        write_json(sections)
        return
    width = max(len(name) for facts in sections.values() for name in facts)
    for subject, facts in sections.items():
        lines = [f"  {name:{width}}  {text}\n" for name, text in facts.items()]
        write(f"{subject}\n{''.join(lines)}")
