"""Run entry with the folded tensors of one setting of the runtime constants."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime

from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import ENTRY_FILE
from onnxfold.runtime.sessions.cache import Folded
from onnxfold.support import files, forks
from onnxfold.support.errors import UsageError, suggestion
from onnxfold.support.onnxruntime_sessions import (
    CPU,
    Array,
    Feed,
    array_of,
    has_numbers,
    open_session,
    ort_value,
    with_data_below,
    write_optimized,
)
from onnxfold.support.tables import Printable, Table, bytes_text, count_text, first_of

logger = logging.getLogger("onnxfold")

_MAX_SHOWN = 12
"""Maximum number of tensor names in the text of a handle."""

_SMALL = 1024
"""Maximum size in bytes of a tensor that is stored inside the model file.

onnxruntime's optimizer reads only the elements of such tensors.
"""


def check_feed(feed: object) -> None:
    """Raise a UsageError if a feed does not map names of inputs to values."""
    if not isinstance(feed, Mapping):
        raise UsageError(f"expected a mapping of inputs by name, got {type(feed).__name__}")


class Binding(onnxruntime.IOBinding):  # type: ignore[misc]
    """An onnxruntime binding in which the inputs bound by a handle cannot be replaced or removed.

    Args:
        entry: The onnxruntime session on entry.
        feeds: The inputs that the handle binds.
        refuse: Raises a UsageError for names that only the handle may bind.

    Attributes:
        process: The id of the process that created the binding.
    """

    def __init__(
        self,
        entry: onnxruntime.InferenceSession,
        feeds: Mapping[str, onnxruntime.OrtValue],
        refuse: Callable[[Iterable[str]], None],
    ) -> None:
        super().__init__(entry)
        self.entry = entry
        self.process = os.getpid()
        self._feeds = feeds
        self._refuse = refuse
        self.clear_binding_inputs()

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """See onnxruntime."""
        self._refuse([name])
        super().bind_cpu_input(name, arr_on_cpu)

    def bind_input(self, name: str, *args: Any, **kwargs: Any) -> None:
        """See onnxruntime."""
        self._refuse([name])
        super().bind_input(name, *args, **kwargs)

    def bind_ortvalue_input(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """See onnxruntime."""
        self._refuse([name])
        super().bind_ortvalue_input(name, ortvalue)

    def clear_binding_inputs(self) -> None:
        """See onnxruntime. The inputs that the handle binds are kept."""
        super().clear_binding_inputs()
        for name, value in self._feeds.items():
            super().bind_ortvalue_input(name, value)

    def get_outputs(self) -> Sequence[onnxruntime.OrtValue]:
        """See onnxruntime."""
        return _keep_owners(super().get_outputs(), self.entry, self._feeds)


def _keep_owners(values: Sequence[Any], *owners: Any) -> Sequence[onnxruntime.OrtValue]:
    """Return outputs that keep the owners of memory alive.

    The memory of an output may be that of a weight or an input.
    """
    for value in values:
        value.owners = owners
    return values


class Handle(Printable):
    """The folded tensors of one setting of the runtime constants, such as one adapter or prompt.

    Any number of threads may run a handle at the same time. A handle keeps its tensors alive after
    the cache evicts them.

    Attributes:
        nbytes: Size of the folded tensors in bytes.
        owner: An object that identifies the session of the handle.
    """

    def __init__(
        self, owner: object, entry: Entry, folded: Sequence[Folded], bound: dict[str, Any]
    ) -> None:
        self.owner = owner
        self.nbytes = sum(part.nbytes for part in folded)
        self._entry = entry
        self._bound = bound
        self._specialized = forks.ProcessLocal[
            tuple[onnxruntime.InferenceSession, dict[str, Any]]
        ]()
        forks.reset_after_fork(self, Handle._keep_tensors)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> Sequence[Any]:
        """Run entry on these tensors, see `Session.run`.

        Raises:
            UsageError: The feed contains a runtime constant or an unknown input, or an input is
                missing.
        """
        self._entry.check(input_feed)
        session, bound = self._open()
        names = output_names or self._entry.outputs
        feed = {**input_feed, **bound}
        return session.run(names, feed, run_options)  # type: ignore[no-any-return]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> Sequence[onnxruntime.OrtValue]:
        """Run entry like `run`, with ``OrtValue`` as inputs and outputs."""
        self._entry.check(input_dict_ort_values)
        session, bound = self._open()
        feeds = {**{n: ort_value(v) for n, v in input_dict_ort_values.items()}, **bound}
        names = output_names or self._entry.outputs
        values: Sequence[Any] = session.run_with_ort_values(names, feeds, run_options)
        return _keep_owners(values, session, bound)

    def io_binding(self) -> Binding:
        """Return a binding for entry in which these tensors are bound."""
        return Binding(*self._open(), self._entry.refuse)

    def tensors(self) -> dict[str, onnxruntime.OrtValue]:
        """Return the inputs of entry that the handle provides, by name."""
        return dict(self._bound)

    def _open(self) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        """Return the session to run, and the tensors of this handle to feed to the session."""
        if not self._entry.specializes:
            return self._entry.session, self._bound
        return self._specialized.get(self._specialize)

    def _specialize(self) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        session = self._entry.specialized(self._bound)
        inputs = {value.name for value in session.get_inputs()}
        bound = {name: value for name, value in self._bound.items() if name in inputs}
        return session, bound

    def _keep_tensors(self) -> None:
        # Freeing the tensors would use an allocator. At the fork, another thread of the parent may
        # have held the lock of the allocator.
        forks.never_destroy(self._bound)

    def _text_parts(self) -> Iterator[str | Table]:
        tensors = self.tensors()
        yield f"handle of {count_text(len(tensors), 'tensor')}, {bytes_text(self.nbytes)} folded"
        yield first_of(list(tensors), _MAX_SHOWN)


@dataclass(eq=False)
class Entry:
    """The part entry, which runs with the folded tensors of a handle.

    With ``specializes``, each handle has a separate session, in which the tensors of the handle are
    weights that onnxruntime can prepack. This requires the CPU provider as the only one, and
    options that do not write the optimized model. Otherwise, the tensors are fed.

    A forked process opens its own sessions.
    """

    bundle: Bundle
    options: onnxruntime.SessionOptions | None
    providers: Sequence[Any]
    specializes: bool

    def __post_init__(self) -> None:
        options = self.options
        manifest = self.bundle.manifest
        self._session = forks.ProcessLocal[onnxruntime.InferenceSession]()
        self._packed = forks.ProcessLocal[_PackedEntry]()
        self.outputs = list(manifest.outputs)
        self._constants = {info.name for info in manifest.runtime_constants}
        self._provided = self._constants | {info.name for info in manifest.cached}
        self._required = {value.name for value in self.session.get_inputs()} - self._provided
        initializers = self.session.get_overridable_initializers()
        self._optional = {value.name for value in initializers} - self._provided
        self._can_prepack = tuple(self.providers) == CPU and not (
            options and options.optimized_model_filepath
        )

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """The onnxruntime session to which folded tensors are fed."""
        return self._session.get(lambda: self.bundle.open(ENTRY_FILE, self.options, self.providers))

    def refuse(self, names: Iterable[str]) -> None:
        """Raise a UsageError for names of values that a handle provides."""
        if not self._provided.isdisjoint(names):
            name = next(name for name in names if name in self._provided)
            raise UsageError(f"{name!r} is part of the handle and must not be fed")

    def check(self, feed: Mapping[str, Feed]) -> None:
        """Raise a UsageError unless a feed matches the inputs that a handle does not provide.

        Inputs with a default value may be missing.
        """
        check_feed(feed)
        self.refuse(feed)
        if feed.keys() != self._required:
            for name in feed.keys() - self._required - self._optional:
                known = {*self._required, *self._optional, *self._constants}
                raise UsageError(f"no input has the name {name!r}{suggestion(str(name), known)}")
            for name in self._required - feed.keys():
                raise UsageError(f"the feed lacks the input {name!r}")

    def specialized(self, bound: Mapping[str, Any]) -> onnxruntime.InferenceSession:
        """Open a session in which the tensors of a handle are weights.

        Values other than tensors of numbers in the CPU's memory remain inputs. If the providers or
        options prevent this, or if onnxruntime cannot open such a session, return the session to
        which all tensors are fed.
        """
        arrays = {name: array_of(value) for name, value in bound.items() if has_numbers(value)}
        try:
            if self._can_prepack:
                packed = self._packed.get(lambda: _PackedEntry(self.bundle, self.options))
                return packed.open(arrays)
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            self._can_prepack = False
            logger.warning("folded tensors are fed, because they cannot become weights: %s", error)
        return self.session


class _PackedEntry:
    """The part entry, with prepacked weights in files.

    Sessions map these files and therefore share all weights other than their folded tensors. The
    files are removed when this object is destroyed.
    """

    def __init__(self, bundle: Bundle, options: onnxruntime.SessionOptions | None) -> None:
        import onnx

        self._options = options
        self._folder = files.folder_of(self, "session")
        path = os.path.join(self._folder, ENTRY_FILE)
        min_size = "optimized_model_external_initializers_min_size_in_bytes"
        entries = {min_size: str(_SMALL), "save_external_prepacked_constant_initializers": "1"}
        bundle.open(ENTRY_FILE, write_optimized(with_data_below("", options), path, **entries), CPU)
        self._model = onnx.load(path, load_external_data=False)

    def open(self, arrays: Mapping[str, Array]) -> onnxruntime.InferenceSession:
        """Open a session in which these arrays replace the inputs with their names, as weights.

        An array of more than `_SMALL` bytes is not copied. Arrays without an input are ignored.
        """
        import onnx
        import onnx_ir as ir

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = model.graph
        inputs = {value.name for value in graph.input}
        arrays = {name: array for name, array in arrays.items() if name in inputs}
        for values in (graph.input, graph.initializer):
            for value in [v for v in values if v.name in arrays]:
                values.remove(value)
        large = {}
        for name, array in arrays.items():
            kind = ir.DataType.from_numpy(array.dtype)
            proto = graph.initializer.add(name=name, data_type=kind, dims=array.shape)
            if array.nbytes <= _SMALL:
                proto.raw_data = ir.tensor(array).tobytes()
            else:
                proto.data_location = onnx.TensorProto.EXTERNAL
                proto.external_data.add(key="location", value="given")
                large[name] = ort_value(array)
        options = with_data_below(self._folder, self._options)
        options.add_external_initializers(list(large), list(large.values()))
        session = open_session(model.SerializeToString(), options)
        session.weights_in_memory = large  # the session reads the arrays as long as it exists
        return session
