"""Split a model by its runtime constants, and list the inputs that could be runtime constants."""

from __future__ import annotations

import dataclasses
import fnmatch
import logging
import re
from collections.abc import Collection, Iterable, Iterator
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, record, select_runtime_constants
from onnxfold.analysis.costs import NominalSizes, work_of
from onnxfold.analysis.facts import ModelFacts, put_in_order
from onnxfold.analysis.modules import parameter_names
from onnxfold.api.options import Level, OptionArguments, SplitArguments, options_of
from onnxfold.api.signatures import Progress, checked
from onnxfold.ir import storage
from onnxfold.ir.storage import ModelLike, PathLike
from onnxfold.passes.cleanups import InlineFunctions
from onnxfold.passes.pipeline import run_passes
from onnxfold.passes.shapes.fixed_dims import fix_dims
from onnxfold.runtime.backends.base import NOT_COMPILING, check_name, create, report_not_compiled
from onnxfold.runtime.backends.compilation import compile_kernels, dump_stages
from onnxfold.runtime.bundles.bundle import Bundle, check_source, hash_model, open_bundle, replacing
from onnxfold.runtime.bundles.in_memory import InMemoryBundle
from onnxfold.runtime.bundles.manifest import FOLD_FILE, Manifest
from onnxfold.runtime.splitting.parts import (
    RuntimeCut,
    entry_of,
    fold_of,
    groups_of,
    hoist,
    name_unnamed_outputs,
    remove_unused_inputs,
    separate_outputs,
)
from onnxfold.runtime.splitting.weights import merge_runtime_constants, weights_as_inputs
from onnxfold.support.errors import UsageError, option
from onnxfold.support.files import check_path, os_error
from onnxfold.support.tables import Printable, Table, bytes_text, first_of
from onnxfold.tools.comparison.dims import check_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

ADAPTERS = "*.lora_?.*"
"""Glob of the names that peft gives to the weights of adapters."""

logger = logging.getLogger("onnxfold")

_MAX_ROWS = 12
"""Maximum number of candidates in the printed table, besides the pair, and of listed inputs."""

_MAX_PAIRED = 12
"""Maximum number of inputs whose pairs are examined."""


@checked
def split(
    source: ModelLike,
    out_dir: PathLike,
    *,
    backend: str = "auto",
    strict_backend: bool = False,
    fsync: bool = True,
    progress: Progress | None = None,
    **arguments: Unpack[SplitArguments],
) -> Bundle:
    """Split a model into runtime_fold and entry, and write both parts as a bundle.

    runtime_fold contains nodes that depend only on runtime constants. It runs once for each setting
    of the runtime constants. Entry contains all other nodes and runs every time. The inputs of
    entry are inputs of the source and the outputs of runtime_fold. A node that depends only on
    runtime constants remains in entry if running it takes less time than feeding its results.

    The function writes ``entry.onnx`` and ``manifest.json``. If runtime_fold has outputs, it also
    writes ``runtime_fold.onnx`` and compiled kernels. Data files contain the weights if the source
    has external data.

    Args:
        source: A path, an ``ir.Model``, an ``onnx.ModelProto`` or a ``torch.onnx.ONNXProgram``. The
            source is not changed.
        out_dir: The folder to write. It is created if it does not exist.
        backend: "iree" and "onnx-mlir" compile runtime_fold and compare the run time of each kernel
            with onnxruntime. "auto" compiles the components that a kernel is likely to speed up, if
            a compiler is installed. "onnxruntime" compiles nothing.
        strict_backend: Whether to raise an error and write nothing unless the backend compiles
            every component.
        fsync: Whether to wait until the files are on the disk.
        progress: Called with "compile", the number of kernels compiled so far and the number of all
            kernels.
        arguments: See `onnxfold.api.options.SplitArguments`, and
            `onnxfold.api.options.OptionArguments` for the optimization at compile time.

    Returns:
        The bundle.

    Raises:
        UsageError: An argument is invalid.
        ModelError: The source is not valid.
        OnnxFoldError: The bundle cannot be written, or in strict mode, a component cannot be
            compiled.
    """
    check_path(out_dir)
    folder = Path(out_dir)
    original = storage.model_in(source)
    with storage.explained(original):
        in_memory = _split(original, backend, arguments, strict=strict_backend, folder=folder)
    manifest = in_memory.manifest
    if not manifest.runtime_constants and arguments.get("fold_at") != "runtime":
        inputs = ", ".join(manifest.inputs)
        name = option("runtime_constants")
        raise UsageError(f"no runtime constants are selected: use {name}; inputs: {inputs}")
    try:
        with replacing(folder, manifest, fsync=fsync) as staged:
            bundle = Bundle(staged, manifest)
            for name, part in in_memory.parts.items():
                storage.save(part, staged / name, fsync=fsync)
            if manifest.groups:
                manifest.hashes = {FOLD_FILE: hash_model(bundle.runtime_fold)}
            _compile(bundle, backend, arguments, progress)
            reasons = _reasons_without_kernel(manifest, backend, strict=strict_backend)
            report_not_compiled(backend, reasons, len(manifest.components), strict_backend)
    except OSError as error:
        raise os_error(error, str(folder)) from error
    return open_bundle(folder)


def _reasons_without_kernel(manifest: Manifest, backend: str, *, strict: bool) -> dict[str, str]:
    """Return the reasons why components have no kernel, by the first output of the component.

    With ``strict``, a component requires a kernel for each target CPU. Otherwise, one kernel is
    sufficient, and a warning contains the reasons for the other target CPUs.
    """
    result: dict[str, str] = {}
    for outputs, kernels in manifest.kernels_by_component.items():
        not_compiled = [kernel for kernel in kernels if kernel.reason is not None]
        if not not_compiled:
            continue
        reasons = [
            f"for {k.cpu}: {k.reason}" if k.cpu and len(kernels) > 1 else str(k.reason)
            for k in not_compiled
        ]
        reason = "; ".join(dict.fromkeys(reasons))
        if strict or len(not_compiled) == len(kernels):
            result[outputs[0]] = reason
        else:
            logger.warning("%s: %s compiled no kernel %s", outputs[0], backend, reason)
    return result


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Inputs, or weights of adapters, that could be runtime constants.

    Attributes:
        names: Names or globs, as ``runtime_constants`` takes them.
        nodes: The number of nodes that would run once.
        work: The share of these nodes in the work of a run at nominal sizes, from 0 to 1.
        nbytes: Size in bytes of the tensors that would be cached, at nominal sizes.
        level: The optimization level that is required for holding them constant.
    """

    names: list[str]
    nodes: int
    work: float
    nbytes: int
    level: Level = 1


@dataclasses.dataclass(frozen=True, repr=False)
class Candidates(Printable):
    """The candidates for runtime constants of a model, sorted by descending share of the work.

    Attributes:
        nodes: The number of nodes of the main graph, without those that are folded at compile time.
        found: The candidates with nodes that would run once: single inputs, inputs with similar
            names, and adapters.
        pair: The pair of inputs that saves the most work. None if the pair saves no more than one
            of its inputs.
        others: The single inputs without nodes that would run once.
    """

    nodes: int
    found: list[Candidate]
    pair: Candidate | None
    others: list[str]

    def _text_parts(self) -> Iterator[str | Table]:
        shown = self.found[:_MAX_ROWS]
        if self.pair is not None:
            shown = [*shown, self.pair]
        rows = [
            (
                ", ".join(each.names) + (" with -O2" if each.level == 2 else ""),
                f"{each.nodes} of {self.nodes}",
                "<1 %" if each.work < 0.005 else f"{100 * each.work:.0f} %",
                bytes_text(each.nbytes),
            )
            for each in shown
        ]
        if rows:
            titles = ("constant over many runs", ">nodes once", ">of the work", ">cached")
            yield Table(titles, rows)
        else:
            yield "no nodes would run once if one of the inputs were constant"
        if len(self.found) > _MAX_ROWS:
            yield f"and {len(self.found) - _MAX_ROWS} more: --json lists all"
        if self.others:
            yield f"inputs without effect on their own: {first_of(self.others, _MAX_ROWS)}"


@checked
def candidates(source: ModelLike, **arguments: Unpack[SplitArguments]) -> Candidates:
    """Return the inputs that could be runtime constants, and the work that each would save.

    The source and the arguments are those of `split`. Nothing is written. Inputs that would make
    the whole model constant are omitted.
    """
    original = storage.model_in(source)
    with storage.explained(original):
        prepared = _Prepared(original, arguments, None)
    inputs = _names(prepared.model.graph.inputs)
    required = {name for name in inputs if name not in prepared.model.graph.initializers}

    def candidate_of(names: list[str], prepared: _Prepared = prepared) -> Candidate | None:
        model = prepared.model.clone()
        selected = _names(select_runtime_constants(model, names))
        if required and required <= {*selected}:
            return None  # the whole model would be constant
        cut = prepared.cut(model, selected)
        once = [node for node in cut.operands if node not in cut.stays]
        work, total = (sum(work_of(n, cut.sizes) for n in ns) for ns in (once, model.graph))
        return Candidate(names, len(once), work / total if total else 0.0, cut.nbytes)

    single = [each for name in inputs if (each := candidate_of([name]))]
    globs = {re.sub(r"\d+", "*", name) for name in inputs}
    globs |= {f"{re.split('[_.]', name)[0]}*" for name in inputs}
    shared = [glob for glob in sorted(globs) if len(fnmatch.filter(inputs, glob)) > 1]
    similar = [each for glob in shared if (each := candidate_of([glob]))]
    best = sorted(single, key=lambda each: -each.work)[:_MAX_PAIRED]
    pairs = [each for a, b in combinations(best, 2) if (each := candidate_of([*a.names, *b.names]))]
    pair = max(pairs, key=lambda each: each.work, default=None)
    if pair is not None and pair.work <= max(c.work for c in single if c.names[0] in pair.names):
        pair = None
    model = storage.opened(original)
    weight_names = (*model.graph.initializers, *parameter_names(model).values())
    if fnmatch.filter(weight_names, ADAPTERS):
        # Merging adapters with other weights may change the last bits, so it requires level 2.
        merging: SplitArguments = {**arguments, "runtime_constants": [ADAPTERS], "level": 2}
        adapted = _Prepared(original, merging, None)
        names = adapted.names
        merge_runtime_constants(adapted.model, names, adapted.options, nominal=adapted.nominal)
        adapters = candidate_of(names, adapted)
        similar += [dataclasses.replace(adapters, names=[ADAPTERS], level=2)] if adapters else []
    found = sorted((c for c in (*single, *similar) if c.nodes), key=lambda each: -each.work)
    others = [each.names[0] for each in single if not each.nodes]
    return Candidates(prepared.model.graph.num_nodes(), found, pair, others)


@checked
def split_in_memory(
    source: ModelLike, *, backend: str = "auto", **arguments: Unpack[SplitArguments]
) -> InMemoryBundle:
    """Split a model like `split`, but keep both parts in memory.

    Only compiled kernels and the stages of ``dump_ir`` are written.
    """
    original = storage.model_in(source)
    with storage.explained(original):
        bundle = _split(original, backend, arguments)
    _compile(bundle, backend, arguments)
    return bundle


def _compile(
    bundle: Bundle, backend: str, arguments: SplitArguments, progress: Progress | None = None
) -> None:
    """Compile the components of runtime_fold, and write the stages if ``dump_ir`` is given."""
    options = arguments.get("backend_options", ())
    seconds = arguments.get("compile_seconds", 120.0)
    target_cpu = arguments.get("target_cpu")
    if backend != "onnxruntime" and bundle.manifest.components:
        nominal = arguments.get("nominal") or {}
        bundle.manifest.kernels = compile_kernels(
            bundle,
            backend,
            options,
            target_cpu=target_cpu,
            seconds=seconds,
            nominal=nominal,
            progress=progress,
        )
    folder = arguments.get("dump_ir")
    if folder is not None:
        check_path(folder)
        dump_stages(bundle, backend, options, Path(folder), target_cpu=target_cpu, seconds=seconds)


def _split(
    source: ModelLike,
    backend: str,
    arguments: SplitArguments,
    *,
    strict: bool = False,
    folder: Path | None = None,
) -> InMemoryBundle:
    """Split a model in memory, see `split`.

    Args:
        source: The model.
        backend: The name of a backend.
        arguments: The arguments of `split`.
        strict: Whether the backend must compile every component.
        folder: The folder to which the caller will write the bundle. None if it is not written.

    Returns:
        The bundle, without kernels.

    Raises:
        UsageError: An argument is invalid, or the bundle would overwrite the source.
        ModelError: The source is not valid.
    """
    target_cpu = arguments.get("target_cpu")
    check_name(backend, arguments.get("backend_options", ()), strict, target_cpu)
    if arguments.get("dump_ir") is not None and backend not in NOT_COMPILING:
        missing = create(backend).missing()
        if missing is not None:
            raise UsageError(missing)
    prepared = _Prepared(source, arguments, folder)
    model = prepared.model
    names = prepared.selected
    nominal = prepared.nominal
    room = None
    if prepared.max_cache is not None:  # tensors that are cached without merges have priority
        room = prepared.max_cache - prepared.cut(model.clone(), names).nbytes
    merges = merge_runtime_constants(model, names, prepared.options, room=room, nominal=nominal)
    cut = prepared.cut(model, names)
    name_unnamed_outputs(model)
    cached = {value: cut.describe(value) for value in cut.cached}
    fold_bytes = storage.planned(fold_of(model, cached)).size if cached else 0
    entry_bytes = max(0, prepared.nbytes - fold_bytes)
    entry = prepared.optimized(entry_of(model, cached.values()), entry_bytes)
    kept = remove_unused_inputs(entry, [*names, *_names(cached)])
    cached = {value: info for value, info in cached.items() if value.name in kept}
    fold = None
    if cached:
        fold = prepared.optimized(fold_of(model, cached))
        remove_unused_inputs(fold, _names(fold.graph.inputs))
    constants = []
    for value in model.graph.inputs:
        if value.name in names:  # without nominal bytes: runtime constants may have any size
            info = cut.describe(value)
            optional = value.name in model.graph.initializers
            constants.append(dataclasses.replace(info, nominal_bytes=None, optional=optional))
    manifest = Manifest(
        runtime_constants=constants,
        inputs=_names(model.graph.inputs),
        outputs=_names(model.graph.outputs),
        entry_inputs=_names(entry.graph.inputs),
        cached=list(cached.values()),
        groups=[] if fold is None else groups_of(fold),
        fold_at=prepared.fold_at,
        nodes={
            "original": prepared.nodes,
            "entry": entry.graph.num_nodes(),
            "runtime_fold": 0 if fold is None else fold.graph.num_nodes(),
        },
        stays=list(cut.stays.values()),
        weights=prepared.weights,
        ranks=prepared.ranks,
        merges=merges,
        versions={p: metadata.version(p) for p in ("onnxfold", "onnx", "onnx-ir", "onnxruntime")},
    )
    return InMemoryBundle(manifest, entry, fold, storage.path_of(source))


class _Prepared:
    """A model before the cut: selected weights are inputs, and constants are folded.

    With ``fold_at="runtime"``, constants are not folded.

    Attributes:
        model: The prepared model.
        fold_at: The argument of `split`.
        max_cache: The argument of `split`.
        options: The options of the optimization, without those that fix dimensions.
        names: The selection of runtime constants, with the names of weights in the file.
        selected: The names of the runtime constants in the order of the inputs.
        weights: The runtime constants that were weights.
        ranks: The ranks of adapters in the file, by the names of their dynamic dimensions.
        nominal: The sizes of symbolic dimensions by name, including the ranks.
        nodes: The number of nodes of the main graph of the source.
        nbytes: Size of the source in bytes, without removed metadata.
    """

    def __init__(self, source: ModelLike, arguments: SplitArguments, folder: Path | None) -> None:
        model = storage.opened(source)
        self.model = model
        if folder is not None:
            check_source(model, folder)
        split_names = SplitArguments.__annotations__.keys() - OptionArguments.__annotations__.keys()
        others = {name: value for name, value in arguments.items() if name not in split_names}
        options = options_of(others, OptionArguments)
        self.fold_at = arguments.get("fold_at", "compile")
        self.max_cache = arguments.get("max_cache")
        runtime_constants = arguments.get("runtime_constants", ())
        nominal = arguments.get("nominal") or {}
        self.names, self.weights, self.ranks = weights_as_inputs(model, runtime_constants)
        if nominal:
            check_names(nominal, model.graph.inputs)
        self.nominal = {**self.ranks, **nominal}
        overridable = arguments.get("overridable", False)
        selected = select_runtime_constants(model, self.names, overridable=overridable)
        self.selected = _names(selected)
        if not model.graph.initializers.keys().isdisjoint(self.selected):
            # Before IR version 4, the default values of inputs cannot be replaced.
            model.ir_version = max(model.ir_version, 4)
            # A model with an IR version before 3 need not import an opset.
            model.opset_imports.setdefault("", storage.onnx_opset(model.opset_imports))
        self.nodes = model.graph.num_nodes()
        self.nbytes = storage.planned(model).size
        record(model, self.selected)
        put_in_order(model)
        fix_dims(model, options.dims, options.input_shapes, options.keep_dims)
        self.options = dataclasses.replace(options, dims={}, input_shapes={}, keep_dims=())
        if model.functions:
            InlineFunctions()(model)  # the cut may separate nodes of one function
            put_in_order(model)
        # Rules run after the cut, because they may fuse nodes of runtime_fold with nodes of entry.
        folding = ("constant-propagation",) if self.fold_at == "compile" else ()
        shapes = ("symbolic-shapes", "dynamic-broadcasts")
        passes = (*folding, *shapes, *folding, "lift-constants", "dead-code")
        if not options.keep_metadata:
            passes = ("debugging-metadata", *passes)
        result = run_passes(model, dataclasses.replace(self.options, passes=passes))
        self.nbytes -= result.removed_metadata_bytes

    def cut(self, model: ir.Model, names: Collection[str]) -> RuntimeCut:
        """Return the cut of a model between runtime_fold and entry.

        The model is changed first: nodes of bodies move to the main graph (`hoist`), and constant
        outputs are separated (`separate_outputs`).

        Args:
            model: The model or a copy of it.
            names: The names of the runtime constants.
        """
        selected = [value for value in model.graph.inputs if value.name in names]
        stays = hoist(model, selected)
        facts = ModelFacts(model, runtime_constants=selected)
        folds = [Constness.RUNTIME]
        if self.fold_at == "runtime":
            folds.append(Constness.COMPILE_TIME)
        folded = [value for value in model.graph.outputs if facts.constness.of(value) in folds]
        if folded:
            separate_outputs(model, folded)
        sizes = NominalSizes(facts, self.nominal)
        cut = RuntimeCut(facts, selected, sizes, folds, self.max_cache)
        cut.stays.update(stays)
        return cut

    def optimized(self, part: ir.Model, bytes_before: int = 0) -> ir.Model:
        """Optimize one of the two parts, and return it.

        With ``fold_at="runtime"``, the part is returned unchanged. ``bytes_before`` is the size of
        the part before the optimization, or 0 if it is unknown.
        """
        if self.fold_at != "compile":
            return part
        declared = {v.name: (v.type, v.shape) for v in part.graph.outputs}
        run_passes(part, self.options, bytes_before=bytes_before)
        for value in part.graph.outputs:  # a rule may have replaced an output
            if value.type is None and value.name in declared:
                value.type, value.shape = declared[value.name]
        name_unnamed_outputs(part)
        return part


def _names(values: Iterable[ir.Value]) -> list[str]:
    return [value.name or "" for value in values]
