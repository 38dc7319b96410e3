"""`onnxfold.InferenceSession`: the session of onnxruntime on a cached optimized model.

`onnxfold.runtime.kept_models` stores the optimized model in the user's cache folder. With
``runtime_constants``, the session caches the results of nodes that depend only on inputs that it
holds constant, see `onnxfold.runtime.sessions.observed`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import onnxruntime as ort

from onnxfold.api.options import Level, OptionArguments, options_of
from onnxfold.api.signatures import checked
from onnxfold.api.targets import Target
from onnxfold.runtime import kept_models
from onnxfold.runtime.kept_models import (
    KeptModel,
    Provider,
    inputs_worth_holding,
    is_unsupported,
    kept_model,
    replaces_values,
    warn,
)
from onnxfold.support import forks
from onnxfold.support.errors import suggestion
from onnxfold.support.onnxruntime_sessions import Feed, copy_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from onnxfold.runtime.sessions.observed import ObservedConstants, RuntimeConstants

    _Source = str | bytes | os.PathLike[str]
else:
    _Source = Any  # onnxruntime raises its own errors for other types

logger = logging.getLogger("onnxfold")

_OFF = ort.GraphOptimizationLevel.ORT_DISABLE_ALL


class _Further(TypedDict, total=False):
    """Further arguments of ``onnxruntime.InferenceSession``."""

    enable_fallback: bool | int
    read_config_from_model: bool | int
    disabled_optimizers: Iterable[str] | None


@dataclass(frozen=True)
class _OpeningArguments:
    """The arguments with which a session was opened.

    A forked process opens the session again with the same arguments.

    Attributes:
        source: The path or the bytes of the model, as the caller passed it.
        options: The session options of onnxruntime.
        fold: The level and the target of the optimization.
        providers: Execution providers, as onnxruntime takes them.
        provider_options: Options of the providers, as onnxruntime takes them.
        further: Further arguments of ``onnxruntime.InferenceSession``.
    """

    source: _Source
    options: ort.SessionOptions | None
    fold: OptionArguments
    providers: Sequence[Provider] | None
    provider_options: Sequence[dict[Any, Any]] | None
    further: _Further


class InferenceSession(ort.InferenceSession):  # type: ignore[misc]
    """An ``onnxruntime.InferenceSession`` that opens an optimized version of the model.

    The first session on a model optimizes the model and stores the result in the user's cache
    folder. Later sessions open the stored model. Its weights are in a file that onnxruntime maps.
    With only the CPU provider, onnxruntime also optimizes the stored model, unless the session
    options disable optimizations or the model has custom ops.

    The session opens the original model instead in these cases:

    - The session options read or write other files, or depend on the nodes of the original model.
    - The session options provide initializers or external data in memory.
    - A keyword in ``kwargs`` is not ``enable_fallback``, or the environment variable
      ``ORT_LOAD_CONFIG_FROM_MODEL`` is set.
    - The model is a file with the suffix .ort.
    - There is no writable cache folder, or the model is larger than the cache.
    - The optimization rejects the model or fails, or onnxruntime cannot open the result.

    With ``runtime_constants="auto"``, the session compares the inputs that are worth holding
    constant with the inputs of earlier runs. If the values of such inputs repeat, the model is
    split in the background. For values that repeat, later runs do not compute again the nodes that
    depend only on these inputs. The results of these runs have the same bits as those of `Session`.

    Args:
        path_or_bytes: The path or the bytes of a model.
        sess_options: The session options of onnxruntime. Libraries of custom ops may only add ops
            in their own domains, because the optimization evaluates standard ops with the kernels
            of onnxruntime.
        providers: Execution providers, as onnxruntime takes them.
        provider_options: Options of the providers, as onnxruntime takes them.
        level: The level of the optimization. None means 1, or 2 with a target.
        target: The target of the optimization, see `onnxfold.api.options.OptionArguments`.
        runtime_constants: "auto" detects the inputs whose values repeat. Names or globs of inputs
            hold these inputs constant from the first run on, and every new value is folded. None
            holds no input constant.
        max_cache_bytes: Upper bound in bytes for the folded tensors of all cached values. None
            means 1 GiB.
        kwargs: Further arguments of ``onnxruntime.InferenceSession``.

    Raises:
        TypeError: A keyword is unknown.
        UsageError: An argument has a wrong type or value, no target has the name, or no input
            matches a name or glob.
        OnnxFoldError: The model cannot be split by the named inputs.
        Exception: onnxruntime rejects the model. Its exceptions have no common base class.
    """

    @checked
    def __init__(
        self,
        path_or_bytes: _Source,
        sess_options: ort.SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        level: Level | None = None,
        target: str | Target | None = None,
        runtime_constants: Literal["auto"] | Sequence[str] | None = None,
        max_cache_bytes: int | None = None,
        **kwargs: Unpack[_Further],
    ) -> None:
        added_keywords = ("level", "target", "runtime_constants", "max_cache_bytes")
        for name in kwargs.keys() - _Further.__annotations__.keys():
            nearest = suggestion(name, (*added_keywords, *_Further.__annotations__))
            reason = f"InferenceSession() got an unexpected keyword argument {name!r}{nearest}"
            raise TypeError(reason)
        requested: OptionArguments = {"target": target}
        if level is not None:
            requested["level"] = level
        options = options_of(requested)
        arguments = _OpeningArguments(
            source=path_or_bytes,
            options=sess_options,
            fold={"level": options.level, "target": target},
            providers=providers,
            provider_options=provider_options,
            further=kwargs,
        )
        self._opened = forks.ProcessLocal[Any]()
        self._requested_constants = runtime_constants
        self._max_cache_bytes = max_cache_bytes
        self._constants: ObservedConstants | None = None
        self._reason_not_observed = "runtime_constants was not given"
        self._open(arguments)
        self._observe()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        run_options: ort.RunOptions | None = None,
    ) -> Sequence[Any]:
        """Compute outputs, see ``onnxruntime.InferenceSession.run``."""
        run = super().run
        if self._constants is None:
            return run(output_names, input_feed, run_options)  # type: ignore[no-any-return]
        return self._constants.run("run", run, output_names, input_feed, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, ort.OrtValue],
        run_options: ort.RunOptions | None = None,
    ) -> Sequence[ort.OrtValue]:
        """Compute outputs, see ``onnxruntime.InferenceSession.run_with_ort_values``."""
        run = super().run_with_ort_values
        feed = input_dict_ort_values
        if self._constants is None:
            return run(output_names, feed, run_options)  # type: ignore[no-any-return]
        return self._constants.run("run_with_ort_values", run, output_names, feed, run_options)

    @property
    def runtime_constants(self) -> RuntimeConstants:
        """The state of the runtime constants: their names, counts of runs and folds, and durations.

        Without observed or named inputs, the state is "off", and ``reason`` contains the reason.
        """
        from onnxfold.runtime.sessions.observed import RuntimeConstants

        if self._constants is None:
            return RuntimeConstants("off", reason=self._reason_not_observed)
        return self._constants.report()

    def wait_for_runtime_constants(self, timeout: float | None = None) -> RuntimeConstants:
        """Wait until no split model is in preparation.

        Args:
            timeout: Maximum time to wait in seconds. None means no limit.

        Returns:
            The state afterwards, see `runtime_constants`.
        """
        if self._constants is not None:
            self._constants.wait(timeout)
        return self.runtime_constants

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        """Open the model again with other providers.

        The arguments are those of ``onnxruntime.InferenceSession.set_providers``. The session
        forgets the values of earlier runs and their folded tensors.
        """
        fallback = vars(self)["_enable_fallback"]
        arguments = replace(
            self._arguments,
            providers=providers,
            provider_options=provider_options,
            further={"enable_fallback": 0},
        )
        self._open(arguments)
        self._enable_fallback = fallback
        self._observe()

    @property
    def _sess(self) -> Any:
        """The native session of the base class. A forked process opens its own native session."""
        return self._opened.get(self._open_again)

    @_sess.setter
    def _sess(self, session: Any) -> None:
        self._opened.set(session)

    def _open_again(self) -> Any:
        reopened = InferenceSession.__new__(InferenceSession)
        reopened._opened = forks.ProcessLocal()
        reopened._open(self._arguments)
        self.__dict__.update({**vars(reopened), "_opened": self._opened})
        return reopened._opened.value

    def _open(self, arguments: _OpeningArguments) -> None:
        self._arguments = arguments
        self._kept: KeptModel | None = None
        source = arguments.source
        options = arguments.options
        providers = arguments.providers
        provider_options = arguments.provider_options
        further = arguments.further
        kept = None
        if not is_unsupported(source, options, further):
            try:
                kept = kept_model(source, options, providers, arguments.fold)
            except Exception as error:  # a failed optimization must not fail the session
                warn(str(error))
        if kept is not None and kept.model is not None and not replaces_values(options, kept):
            session_options = options
            try:
                if kept.is_finished:
                    session_options = copy_of(options)
                    level = session_options.graph_optimization_level
                    session_options.graph_optimization_level = _OFF
                super().__init__(
                    kept.model, session_options, providers, provider_options, **further
                )
            except Exception as error:  # exceptions of onnxruntime have no common base class
                logger.info("%s: the optimized model cannot be opened: %s", kept.model, error)
            else:
                # If the link differs, another process removed or replaced the model meanwhile.
                if kept_models.linked_model(kept.link) == kept:
                    if kept.is_finished:
                        self.get_session_options().graph_optimization_level = level
                    self._model_path = None if isinstance(source, bytes) else os.fspath(source)
                    self._kept = kept
                    return
        super().__init__(source, options, providers, provider_options, **further)

    def _observe(self) -> None:
        """End an earlier observation, and start a new one if ``runtime_constants`` requires it.

        The named inputs are held constant. With "auto", the inputs that are worth holding constant
        are observed.
        """
        if self._constants is not None:
            self._constants.close()
            self._constants = None
        source = self._arguments.source
        name = "the model" if isinstance(source, bytes) else os.fspath(source)
        if self._requested_constants is None:
            self._log_savings(name)
            return
        if isinstance(self._requested_constants, str):
            reason = self._reason_not_to_observe()
            if reason is not None:
                self._reason_not_observed = reason
                logger.info("%s: no runtime constants: %s", name, reason)
                return
        # Modules that hold inputs constant take 3 MB. Other sessions do not import them.
        from onnxfold.runtime.held_inputs import (
            SplittableModel,
            hold_named_inputs,
            hold_repeated_inputs,
            source_of,
        )

        providers: Any = self._arguments.providers
        if self._arguments.provider_options is not None:
            providers = list(zip(providers, self._arguments.provider_options, strict=True))
        model = SplittableModel(
            name=name,
            source=source_of(source),
            options=self._arguments.options,
            providers=providers or self.get_providers(),
            fold=self._arguments.fold,
            kept=self._kept,
            max_cache_bytes=self._max_cache_bytes,
            is_named=not isinstance(self._requested_constants, str),
        )
        if isinstance(self._requested_constants, str):
            self._constants = hold_repeated_inputs(model, self)
        else:
            self._constants = hold_named_inputs(model, self, self._requested_constants)

    def _reason_not_to_observe(self) -> str | None:
        """Return the reason why no input is observed with "auto"; None if inputs are observed."""
        if self._kept is None:
            return "the model is opened without optimization"
        options = self._arguments.options
        if options is not None and options.enable_profiling:
            return "the session is profiled"
        if not inputs_worth_holding(self._kept):
            return "no input is worth holding constant"
        return None

    def _log_savings(self, name: str) -> None:
        """Log the shares of the work that ``runtime_constants="auto"`` can fold, at level DEBUG."""
        if self._kept is None or not logger.isEnabledFor(logging.DEBUG):
            return
        for names, share in inputs_worth_holding(self._kept):
            message = '%s: runtime_constants="auto" folds up to %.0f %% of the work if %s repeat'
            logger.debug(message, name, 100 * share, ", ".join(names))
