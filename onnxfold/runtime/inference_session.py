"""`onnxfold.InferenceSession`: onnxruntime's session, on a model that was optimized once and kept.

The optimized model is in the user's cache folder, see `onnxfold.runtime.kept_models`. With
``runtime_constants``, what depends on inputs that keep their values is computed once, see
`onnxfold.runtime.sessions.observed`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
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


class InferenceSession(ort.InferenceSession):  # type: ignore[misc]
    """An ``onnxruntime.InferenceSession`` on the optimized model, which the first start makes.

    The optimized model is kept in the user's cache folder, and later sessions open it: on a CPU as
    onnxruntime optimized it, with weights in a mapped file. Where that is not possible, the session
    opens the model as it is: with options that read or write other files, without a writable cache
    folder, with options that provide initializers or external data in memory, and for models that
    onnxfold refuses.

    With ``runtime_constants="auto"``, the session compares the inputs that are worth holding
    constant with those of earlier runs. If they repeat, a background thread splits the model, and
    following runs compute what depends on these inputs once for each value. The bits are those of
    `Session`.

    Args:
        path_or_bytes: The path or the bytes of a model.
        sess_options: onnxruntime's session options. Libraries of custom ops may only add ops of
            their own domains; the optimization computes onnx's ops as onnxruntime does.
        providers: Execution providers, as onnxruntime takes them.
        provider_options: Options of the providers, as onnxruntime takes them.
        level: The level of the optimization; None for 1, or 2 with a target.
        target: The target of the optimization, see `onnxfold.api.options.OptionArguments`.
        runtime_constants: "auto": find the inputs that keep their values. Names or globs of inputs:
            hold these constant from the first run on, and fold every new value. None: neither.
        max_cache_bytes: Bound in bytes of the folded tensors of all values that are held; None for
            1 GiB.
        kwargs: Further arguments of ``onnxruntime.InferenceSession``.

    Raises:
        TypeError: There is no such keyword.
        UsageError: There is no such level, target or input.
        ModelError: The model cannot be split by the inputs that are named.
        Exception: onnxruntime refuses the model, by one of many classes without a common base.
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
        own = ("level", "target", "runtime_constants", "max_cache_bytes")
        for name in kwargs.keys() - _Further.__annotations__.keys():
            near = suggestion(name, (*own, *_Further.__annotations__))
            reason = f"InferenceSession() got an unexpected keyword argument {name!r}{near}"
            raise TypeError(reason)
        chosen = options_of({"target": target, **({} if level is None else {"level": level})})
        fold: OptionArguments = {"level": chosen.level, "target": target}
        self._onnxfold = path_or_bytes, sess_options, fold
        self._opened = forks.ProcessLocal[Any]()
        self._held = runtime_constants
        self._max_cache_bytes = max_cache_bytes
        self._constants: ObservedConstants | None = None
        self._not_observed = "runtime_constants was not given"
        self._open(providers, provider_options, kwargs)
        self._observe(providers, provider_options)

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
        """The inputs that are held constant, the number of folds and the measured durations."""
        from onnxfold.runtime.sessions.observed import RuntimeConstants

        if self._constants is None:
            return RuntimeConstants("off", reason=self._not_observed)
        return self._constants.report()

    def wait_for_runtime_constants(self, timeout: float | None = None) -> RuntimeConstants:
        """Wait until a split model that is being prepared can be used.

        Args:
            timeout: Most seconds to wait; None for no limit.

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
        """Open the model again with other providers, see ``onnxruntime.InferenceSession``."""
        fallback = vars(self)["_enable_fallback"]
        self._open(providers, provider_options, {"enable_fallback": 0})
        self._enable_fallback = fallback
        self._observe(providers, provider_options)

    @property
    def _sess(self) -> Any:
        """The session of onnxruntime's base class, which a forked process opens again."""
        return self._opened.get(self._open_again)

    @_sess.setter
    def _sess(self, session: Any) -> None:
        self._opened.set(session)

    def _open_again(self) -> Any:
        again = InferenceSession.__new__(InferenceSession)
        again._onnxfold = self._onnxfold
        again._opened = forks.ProcessLocal()
        again._open(*self._opening)
        self.__dict__.update({**vars(again), "_opened": self._opened})
        return again._opened.value

    def _open(self, providers: Any, provider_options: Any, kwargs: _Further) -> None:
        self._opening = providers, provider_options, kwargs
        self._kept: KeptModel | None = None
        source, options, fold = self._onnxfold
        kept = None
        if not is_unsupported(source, options, kwargs):
            try:
                kept = kept_model(source, options, providers, fold)
            except Exception as error:  # an optimization that fails must not make the session fail
                warn(str(error))
        if kept is not None and kept.model is not None and not replaces_values(options, kept):
            opening = options
            try:
                if kept.is_finished:
                    opening = copy_of(options)
                    level = opening.graph_optimization_level
                    opening.graph_optimization_level = _OFF
                super().__init__(kept.model, opening, providers, provider_options, **kwargs)
            except Exception as error:  # onnxruntime raises many classes without a common base
                logger.info("%s is not opened: %s", kept.model, error)
            else:
                if kept_models.found(kept.link) == kept:  # nothing was replaced meanwhile
                    if kept.is_finished:
                        self.get_session_options().graph_optimization_level = level
                    self._model_path = None if isinstance(source, bytes) else os.fspath(source)
                    self._kept = kept
                    return
        super().__init__(source, options, providers, provider_options, **kwargs)

    def _observe(self, providers: Any, provider_options: Any) -> None:
        """Hold constant the inputs that are named, or observe those that are worth it."""
        if self._constants is not None:
            self._constants.close()
            self._constants = None
        source, options, fold = self._onnxfold
        name = "the model" if isinstance(source, bytes) else os.fspath(source)
        if self._held is None:
            self._log_savings(name)
            return
        from onnxfold.runtime.held_inputs import (
            SplittableModel,
            hold_named_inputs,
            hold_repeated_inputs,
            source_of,
        )

        if provider_options is not None:
            providers = list(zip(providers, provider_options, strict=True))
        model = SplittableModel(
            name=name,
            source=source_of(source),
            options=options,
            providers=providers or self.get_providers(),
            fold=fold,
            kept=self._kept,
            max_cache_bytes=self._max_cache_bytes,
            is_named=not isinstance(self._held, str),
        )
        if not isinstance(self._held, str):
            self._constants = hold_named_inputs(model, self, self._held)
            return
        found = hold_repeated_inputs(model, self)
        if isinstance(found, str):
            self._not_observed = found
            logger.info("%s: no runtime constants: %s", name, found)
        else:
            self._constants = found

    def _log_savings(self, name: str) -> None:
        """Log the shares of the work that could be folded with ``runtime_constants="auto"``."""
        if self._kept is None or not logger.isEnabledFor(logging.DEBUG):
            return
        for names, share in inputs_worth_holding(self._kept):
            text = '%s: runtime_constants="auto" folds up to %.0f %% of the work if %s repeat'
            logger.debug(text, name, 100 * share, ", ".join(names))
