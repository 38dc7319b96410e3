"""Splitting a model: what depends on runtime constants only leaves it, to be computed once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.constness import (
    Constness,
    ConstnessAnalysis,
    select_runtime_constants,
)
from onnxfold.analysis.order import sort_if_needed
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.editing.names import Names
from onnxfold.errors import UsageError
from onnxfold.graphs import all_graphs
from onnxfold.options import Options
from onnxfold.passes.dead_code import RemoveDeadCode
from onnxfold.passes.pipeline import run_passes
from onnxfold.passes.symbolic_shapes import SymbolicShapes
from onnxfold.runtime.backends import check_dump, check_name, compile_kernels, dump_stages
from onnxfold.runtime.bundle import (
    ENTRY_FILE,
    FOLD_FILE,
    Bundle,
    Group,
    Manifest,
    Stay,
    TensorInfo,
    hash_model,
    open_bundle,
)
from onnxfold.runtime.cut import Cut, Region, find_cut
from onnxfold.runtime.parts import (
    Described,
    components,
    drop_unread,
    entry_of,
    fold_of,
    named_clone,
    separate_outputs,
)
from onnxfold.runtime.sizes import NominalSizes
from onnxfold.runtime.staging import check_source, fresh_folder, put_in_place
from onnxfold.storage.atomic import os_error

PathLike = str | os.PathLike[str]
ModelLike = PathLike | ir.Model | onnx.ModelProto


@dataclass
class Parts:
    """A model that has been cut in two, in memory.

    ``fold`` is None if nothing is cached: then entry is the whole model.
    """

    entry: ir.Model
    fold: ir.Model | None
    manifest: Manifest


def split(
    source: ModelLike,
    out_dir: PathLike,
    *,
    runtime_constants: Iterable[str] = (),
    overridable: bool = False,
    fold_at: str = "compile",
    max_cache: int | None = None,
    nominal: Mapping[str, int] | None = None,
    backend: str = "auto",
    fsync: bool = True,
    compile_seconds: float = 120.0,
    dump_ir: PathLike | None = None,
    **options: Any,
) -> Bundle:
    """Split a model into a part that runs once for given runtime constants, and the rest.

    Writes ``entry.onnx``, ``runtime_fold.onnx``, ``manifest.json`` and compiled kernels. Running
    runtime_fold and giving its outputs to entry computes what the source computes.

    Args:
        source: A path, an ``ir.Model`` or an ``onnx.ModelProto`` (the latter two are left alone).
        out_dir: The folder to write; made if it is not there.
        runtime_constants: Names of inputs that stay the same over many runs, or globs of them.
        overridable: Treat every input that has a default value as a runtime constant.
        fold_at: "compile" computes what depends on the file alone now; "runtime" leaves that to
            runtime_fold as well (a small file, and a cost at the first run).
        max_cache: Bytes that the cached tensors may take, at nominal sizes; None for no bound.
        nominal: Assumed sizes of symbolic dimensions by name. They decide only about where to cut.
        backend: "iree" and "onnx-mlir" compile runtime_fold; "auto" takes kernels that were
            compiled before (see `onnxfold.Session`); "onnxruntime" runs it as a model.
        fsync: Wait until the files are on the disk.
        compile_seconds: Time limit of one compilation.
        dump_ir: A folder to write what the compiler makes of runtime_fold, stage by stage.
        options: Of the optimization at compile time, see `onnxfold.options.Options`.

    Raises:
        UsageError: An argument cannot be used as given.
        ModelError: The source is not valid.
        OnnxFoldError: The bundle cannot be written.
    """
    check_name(backend)
    if dump_ir is not None:
        check_dump(backend)
    model = opened(source)
    check_source(model, Path(out_dir))
    parts = split_model(
        model,
        runtime_constants=runtime_constants,
        overridable=overridable,
        fold_at=fold_at,
        max_cache=max_cache,
        nominal=nominal,
        **options,
    )
    bundle = write_bundle(
        parts, out_dir, backend=backend, fsync=fsync, compile_seconds=compile_seconds
    )
    if dump_ir is not None:
        dump_stages(bundle, backend, Path(dump_ir), seconds=compile_seconds)
    return bundle


def write_bundle(
    parts: Parts,
    out_dir: PathLike,
    *,
    backend: str = "auto",
    fsync: bool = True,
    compile_seconds: float = 120.0,
) -> Bundle:
    """Write a split model, see `split`, in place of the bundle that is there."""
    check_name(backend)
    folder = Path(out_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with fresh_folder(folder) as staged:
            bundle = Bundle(staged, parts.manifest)
            parts.manifest.hashes = {}
            storage.save(parts.entry, bundle.entry, fsync=fsync)
            if parts.fold is not None:
                storage.save(parts.fold, bundle.runtime_fold, fsync=fsync)
                parts.manifest.hashes[FOLD_FILE] = hash_model(bundle.runtime_fold)
            parts.manifest.kernels = compile_kernels(bundle, backend, seconds=compile_seconds)
            put_in_place(staged, parts.manifest, fsync=fsync)
    except OSError as error:
        raise os_error(error, str(folder)) from error
    return open_bundle(folder)


def split_model(
    model: ir.Model,
    *,
    runtime_constants: Iterable[str] = (),
    overridable: bool = False,
    fold_at: str = "compile",
    max_cache: int | None = None,
    nominal: Mapping[str, int] | None = None,
    **options: Any,
) -> Parts:
    """Split a model in memory, see `split`; the model is changed on the way."""
    if fold_at not in ("compile", "runtime"):
        raise UsageError(f"fold_at must be 'compile' or 'runtime', got {fold_at!r}")
    if isinstance(runtime_constants, str):
        raise UsageError("runtime_constants must be a sequence of names, not one string")
    for name, size in (nominal or {}).items():
        if not isinstance(size, int) or size < 0:
            raise UsageError(f"nominal size of {name!r} must be a number from 0 up, got {size!r}")
    chosen = select_runtime_constants(model, runtime_constants, overridable=overridable)
    nodes_before = model.graph.num_nodes()
    settings = _options(options)
    model = _prepare(model, chosen, fold_at, settings)
    chosen = [value for value in model.graph.inputs if value.name in {v.name for v in chosen}]
    constness = ConstnessAnalysis(model, chosen)
    folded_outputs = [v for v in model.graph.outputs if _is_folded(v, constness, fold_at)]
    if folded_outputs:
        separate_outputs(model, folded_outputs)
        constness = ConstnessAnalysis(model, chosen)
    kept = set(model.graph.outputs)
    region = Region(model, chosen, constness, nominal, fold_at == "runtime", pinned=kept)
    facts = _Facts(model, region.sizes)
    region.refuse = lambda value: not facts.is_describable(value)
    cut = find_cut(region, max_cache)
    return _cut_in_two(model, chosen, cut, facts, fold_at, nodes_before, settings)


def _is_folded(value: ir.Value, constness: ConstnessAnalysis, fold_at: str) -> bool:
    least = constness.of(value)
    return least is Constness.RUNTIME or (least is Constness.COMPILE_TIME and fold_at == "runtime")


def _prepare(
    model: ir.Model, chosen: Sequence[ir.Value], fold_at: str, options: Options
) -> ir.Model:
    """What is constant at compile time goes, and shapes become as independent as they are.

    Rules come after the cut: they may fuse what is constant with what is not.
    """
    sort_if_needed(model)
    _inline_calls(model, chosen)
    first = dataclasses.replace(options, level=0)
    if fold_at == "compile":
        run_passes(model, first)
    SymbolicShapes(options)(model)
    if fold_at == "compile":
        run_passes(model, first)
    RemoveDeadCode()(model)
    sort_if_needed(model)
    return model


def _finish(part: ir.Model, fold_at: str, options: Options) -> ir.Model:
    """Optimize one of the two parts for itself."""
    if fold_at != "compile":
        return part
    declared = {v.name: (v.type, v.shape) for v in part.graph.outputs}
    run_passes(part, options)
    sort_if_needed(part)
    for value in part.graph.outputs:  # a rule may have put another value in the place of one
        if value.type is None and value.name in declared:
            value.type, value.shape = declared[value.name]
    return named_clone(part)


def _inline_calls(model: ir.Model, chosen: Sequence[ir.Value]) -> None:
    """Functions that runtime constants go into: a cut may have to go through them."""
    if not model.functions:
        return
    from onnx_ir.passes import common

    constness = ConstnessAnalysis(model, chosen)
    calls = [
        node
        for graph in all_graphs(model)
        for node in graph
        if node.op_identifier() in model.functions
    ]
    concerned = {
        node.op_identifier()
        for node in calls
        if any(v is not None and constness.of(v) is Constness.RUNTIME for v in node.inputs)
    }
    if concerned:
        names = Names(all_graphs(model))
        for value in (v for node in calls for v in node.outputs if not v.name):
            value.name = names.fresh("unread")  # the function itself may read it
        common.InlinePass(criteria=lambda f: f.identifier() in concerned)(model)
        sort_if_needed(model)


class _Facts:
    """Types of the values at the cut."""

    def __init__(self, model: ir.Model, sizes: NominalSizes) -> None:
        self._analysis = SymbolicAnalysis(model)
        self._sizes = sizes

    def is_describable(self, value: ir.Value) -> bool:
        """Whether it can be declared as an input, which takes a rank."""
        known = self.describe(value)
        return known is not None and known.dims is not None

    def describe(self, value: ir.Value) -> Described | None:
        """The type; None if it is not a tensor of a known dtype."""
        fact = self._analysis.of(value)
        dtype = fact.dtype or self._sizes.dtype(value)
        if dtype is None or fact.other is not None or dtype == ir.DataType.UNDEFINED:
            return None
        if fact.shape is None:
            return Described(dtype, None)
        name_of = self._analysis.algebra.name_of
        return Described(dtype, tuple(d if isinstance(d, int) else name_of(d) for d in fact.shape))


def _cut_in_two(
    model: ir.Model,
    chosen: Sequence[ir.Value],
    cut: Cut,
    facts: _Facts,
    fold_at: str,
    nodes_before: int,
    options: Options,
) -> Parts:
    names = [v.name for v in chosen if v.name]
    cached: dict[str, Described] = {}
    infos: list[TensorInfo] = []
    for value in cut.cached:
        known = facts.describe(value)
        assert known is not None and value.name is not None
        cached[value.name] = known
        infos.append(_info(value.name, known, cut.sizes.get(value)))
    entry = entry_of(model, cached, names)
    entry = _finish(entry, fold_at, options)
    drop_unread(entry, [*names, *cached])
    read = {v.name for v in entry.graph.inputs}
    infos = [info for info in infos if info.name in read]
    cached = {name: known for name, known in cached.items() if name in read}
    fold = fold_of(model, cached) if cached else None
    if fold is not None:
        fold = _finish(fold, fold_at, options)
        drop_unread(fold, [v.name or "" for v in fold.graph.inputs])
    defaults = set(model.graph.initializers)
    manifest = Manifest(
        runtime_constants=[
            _info(v.name or "", facts.describe(v), None, v.name in defaults) for v in chosen
        ],
        inputs=[v.name or "" for v in model.graph.inputs],
        outputs=[v.name or "" for v in model.graph.outputs],
        entry_inputs=[v.name or "" for v in entry.graph.inputs],
        cached=infos,
        groups=_groups(fold) if fold is not None else [],
        fold_at=fold_at,
        nodes={
            "original": nodes_before,
            "entry": entry.graph.num_nodes(),
            "runtime_fold": fold.graph.num_nodes() if fold is not None else 0,
        },
        stays=[
            Stay(k.node.name or k.node.outputs[0].name or "", k.node.op_type, k.reason)
            for k in cut.kept
        ],
        versions={p: metadata.version(p) for p in ("onnxfold", "onnx", "onnx-ir", "onnxruntime")},
    )
    return Parts(entry, fold, manifest)


def _groups(fold: ir.Model) -> list[Group]:
    """The components of runtime_fold by the runtime constants that they read."""
    inputs = [v.name or "" for v in fold.graph.inputs]
    by_name = {v.name: v for v in fold.graph.outputs}
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for names in components(fold):
        read = _inputs_of([by_name[name] for name in names])
        groups.setdefault(tuple(n for n in inputs if n in read), []).append(names)
    return [
        Group(list(constants), [name for names in members for name in names], members)
        for constants, members in groups.items()
    ]


def _inputs_of(outputs: Sequence[ir.Value]) -> set[str]:
    """Names of the graph inputs that outputs are made of."""
    from onnxfold.analysis.constants import captured_values

    seen: set[ir.Value] = set(outputs)
    pending = list(outputs)
    while pending:
        node = pending.pop().producer()
        if node is None:
            continue
        captured = captured_values(node) if node.attributes else []
        for value in (*node.inputs, *captured):
            if value is not None and value not in seen:
                seen.add(value)
                pending.append(value)
    return {v.name for v in seen if v.is_graph_input() and v.name}


def _info(
    name: str, known: Described | None, nbytes: int | None, optional: bool = False
) -> TensorInfo:
    if known is None:
        return TensorInfo(name, "undefined", None, nbytes, optional)
    shape = None if known.dims is None else list(known.dims)
    return TensorInfo(name, known.dtype.name.lower(), shape, nbytes, optional)


def opened(source: ModelLike) -> ir.Model:
    """The model of a source, to be changed: the source itself is left alone.

    Raises:
        UsageError: It is neither a path nor a model.
        ModelError: The model is not valid.
    """
    if isinstance(source, onnx.ModelProto):
        return storage.from_proto(source)
    if not isinstance(source, (str, os.PathLike, ir.Model)):
        raise UsageError(f"expected a path or a model, got {type(source).__name__}")
    return source.clone() if isinstance(source, ir.Model) else storage.load(source)


def _options(given: dict[str, Any]) -> Options:
    known = Options.__dataclass_fields__
    for name in given:
        if name not in known:
            raise UsageError(f"unknown option {name!r}; there are {', '.join(known)}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return Options(**values)


__all__ = ["ENTRY_FILE", "FOLD_FILE", "Parts", "split", "split_model", "write_bundle"]
