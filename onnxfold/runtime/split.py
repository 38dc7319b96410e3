"""Splitting a model: what depends on runtime constants only leaves it, to be computed once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.constness import select_runtime_constants
from onnxfold.errors import UsageError
from onnxfold.files import os_error
from onnxfold.runtime.backends.ahead import compile_kernels, dump_stages
from onnxfold.runtime.backends.process import Progress
from onnxfold.runtime.backends.registry import NOT_COMPILING, check_name, create, report_rest
from onnxfold.runtime.bundles.bundle import Bundle, hash_model, is_bundle, open_bundle
from onnxfold.runtime.bundles.in_memory import InMemory
from onnxfold.runtime.bundles.manifest import FOLD_FILE, Manifest, TensorInfo
from onnxfold.runtime.bundles.staging import check_source, replacing
from onnxfold.runtime.splitting.split_model import SplitArguments, split_model
from onnxfold.runtime.splitting.weights import weights_as_inputs
from onnxfold.storage import ModelLike, PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    """Split a model into a part that runs once for given runtime constants, and the rest.

    Writes ``entry.onnx``, ``runtime_fold.onnx``, ``manifest.json`` and compiled kernels. Running
    runtime_fold and giving its outputs to entry computes what the source computes.

    Args:
        source: A path, an ``ir.Model``, an ``onnx.ModelProto`` or a ``torch.onnx.ONNXProgram``;
            it is left alone.
        out_dir: The folder to write; made if it is not there.
        backend: "iree" and "onnx-mlir" compile runtime_fold, and time it against onnxruntime;
            "auto" and "onnxruntime" compile nothing.
        strict_backend: Write nothing unless the backend compiles every component.
        fsync: Wait until the files are on the disk.
        progress: Called with "compile", the kernels that are made and all that are to be.
        runtime_constants: Names of inputs that stay the same over many runs, or globs of them; if
            no inputs are called that, of weights, by their names in the file or PyTorch's.
        overridable: Treat every input that has a default value as a runtime constant.
        fold_at: "compile" (the default) computes what depends on the file alone now; "runtime"
            leaves that to runtime_fold as well (a small file, and a cost at the first run).
        max_cache: Bytes that the cached tensors may take, at nominal sizes; None for no bound.
        nominal: Assumed sizes of symbolic dimensions by name. They decide about where to cut, and
            at which sizes kernels are tried and timed.
        backend_options: Options for the backend's compiler, such as "-O2"; each is a part of what
            a kernel is kept by, and takes the place of a flag of the same name.
        compile_seconds: Time limit of one compilation; 120 by default.
        dump_ir: A folder for drawings of compiletime_fold, runtime_fold and entry, and for what the
            compiler makes of each component, stage by stage.
        arguments: Those, and options of the optimization at compile time, see
            `onnxfold.options.Options`.

    Raises:
        UsageError: An argument cannot be used as given.
        ModelError: The source is not valid.
        OnnxFoldError: The bundle cannot be written, or a component was not compiled that must be.
    """
    check_name(backend, strict=strict_backend)
    model = _opened(source, backend, arguments)
    folder = Path(out_dir)
    check_source(model, folder)
    made = split_model(model, arguments)
    manifest = made.manifest
    if not manifest.runtime_constants and arguments.get("fold_at") != "runtime":
        inputs = ", ".join(manifest.inputs)
        raise UsageError(f"no runtime constant is named (--runtime-const); inputs: {inputs}")
    try:
        with replacing(folder, manifest, fsync=fsync) as staged:
            bundle = Bundle(staged, manifest)
            for name, part in made.parts.items():
                storage.save(part, staged / name, fsync=fsync)
            if manifest.groups:
                manifest.hashes = {FOLD_FILE: hash_model(bundle.runtime_fold)}
            _compile(bundle, backend, arguments, progress)
            left = {k.outputs[0]: k.reason for k in manifest.kernels if k.reason is not None}
            report_rest(backend, left, len(manifest.components), strict_backend)
    except OSError as error:
        raise os_error(error, str(folder)) from error
    return open_bundle(folder)


def constants_in(source: PathLike, names: Iterable[str] = ()) -> Manifest:
    """Return the runtime constants of a bundle, or those that a model would have: see `Manifest`.

    Args:
        source: A bundle, or a model.
        names: Of a model, which of its inputs and weights; all weights that are no single
            numbers if there are none.

    Raises:
        UsageError: No input or weight has such a name.
        ModelError: The source is not valid.
    """
    if is_bundle(source) or Path(source).is_dir():
        if tuple(names):
            raise UsageError("a bundle is split already: its runtime constants are fixed")
        return open_bundle(source).manifest
    model = storage.load(source)
    weights = model.graph.initializers.values()
    large = [v.name or "" for v in weights if v.shape is None or len(v.shape)]
    opened = weights_as_inputs(model, names or large)
    infos = [
        TensorInfo(
            value.name or "",
            value.dtype.name.lower() if value.dtype is not None else "undefined",
            None
            if value.shape is None
            else [d if isinstance(d, int) else d.value for d in value.shape],
            optional=value.name in model.graph.initializers,
        )
        for value in select_runtime_constants(model, opened.names)
    ]
    return Manifest(infos, [], [], [], [], [], weights=opened.weights)


def split_in_memory(
    source: ModelLike, *, backend: str = "auto", **arguments: Unpack[SplitArguments]
) -> InMemory:
    """Split a model as `split` does, and write nothing but kernels.

    Raises:
        UsageError: An argument cannot be used as given.
        ModelError: The source is not valid.
    """
    made = split_model(_opened(source, backend, arguments), arguments)
    _compile(made, backend, arguments)
    return made


def _opened(source: ModelLike, backend: str, arguments: SplitArguments) -> ir.Model:
    """Return the model of a source, to be changed: the source itself is left alone.

    Raises:
        UsageError: It is no model, or the backend is none or cannot do it.
        ModelError: The model is not valid.
    """
    check_name(backend, arguments.get("backend_options", ()))
    if arguments.get("dump_ir") is not None and backend not in NOT_COMPILING:
        missing = create(backend).missing()
        if missing is not None:
            raise UsageError(missing)
    return storage.opened(source)


def _compile(
    made: Bundle, backend: str, arguments: SplitArguments, progress: Progress | None = None
) -> None:
    """Have the parts of runtime_fold compiled, and the stages written if a folder is given."""
    if backend in NOT_COMPILING or not made.manifest.components:
        return
    options = arguments.get("backend_options", ())
    seconds = arguments.get("compile_seconds", 120.0)
    nominal = arguments.get("nominal") or {}
    made.manifest.kernels = compile_kernels(
        made, backend, options, seconds=seconds, nominal=nominal, progress=progress
    )
    folder = arguments.get("dump_ir")
    if folder is not None:
        dump_stages(made, backend, options, Path(folder), seconds=seconds)
