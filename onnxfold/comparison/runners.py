"""Running a model: on onnxruntime, or on onnx's reference evaluator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx

from onnxfold.comparison.random_feeds import Feed, Feeds
from onnxfold.onnxruntime_sessions import (
    CPU,
    array_of,
    is_foreign,
    message_of,
    open_session,
    ort_value,
    register_custom_ops,
    session_options,
)

Output = Feed


class CannotLoad(Exception):
    """The runtime does not take the model."""


class CannotRun(Exception):
    """The runtime took the model but failed on these feeds."""


class Runner(Protocol):
    """Runs one model."""

    def run(self, feeds: Feeds) -> dict[str, Output]:
        """Return the outputs by name; raises `CannotRun`."""


class OnnxruntimeRunner:
    """Node by node on onnxruntime: optimizations and prepacking are off.

    Prepacking sums a product with a constant operand in another order: with it, folding
    something into a constant would change last bits.

    Raises:
        CannotLoad: onnxruntime does not take the model.
        UsageError: It does not take a library.
    """

    name = "onnxruntime"

    def __init__(
        self,
        source: str | bytes,
        providers: Sequence[Any] | None = None,
        custom_ops: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        options = session_options(node_by_node=True)
        register_custom_ops(options, custom_ops)
        try:
            self._session = open_session(source, options, providers or CPU)
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise CannotLoad(message_of(error)) from error
        self._outputs = [output.name for output in self._session.get_outputs()]
        ends = [*self._session.get_inputs(), *self._session.get_outputs()]
        self._is_plain = not any(is_foreign(end.type) for end in ends)

    def run(self, feeds: Feeds) -> dict[str, Output]:
        """Return the outputs by name."""
        try:
            if self._is_plain:
                outputs = self._session.run(self._outputs, feeds)
            else:
                values = {name: ort_value(feed) for name, feed in feeds.items()}
                outputs = map(array_of, self._session.run_with_ort_values(self._outputs, values))
            return dict(zip(self._outputs, outputs, strict=True))
        except Exception as error:
            raise CannotRun(message_of(error)) from error


class ReferenceRunner:
    """onnx's reference evaluator: slow, but it knows every op and type of the standard.

    Raises:
        CannotLoad: The evaluator does not take the model.
    """

    name = "onnx reference evaluator"

    def __init__(self, source: str | bytes) -> None:
        from onnx.reference import ReferenceEvaluator

        try:
            model = onnx.load_from_string(source) if isinstance(source, bytes) else source
            self._evaluator = ReferenceEvaluator(model)
        except Exception as error:  # anything, for a model that is not valid
            raise CannotLoad(message_of(error)) from error

    def run(self, feeds: Feeds) -> dict[str, Output]:
        """Return the outputs by name."""
        try:
            with np.errstate(all="ignore"):
                outputs = self._evaluator.run(None, feeds)
        except Exception as error:
            raise CannotRun(message_of(error)) from error
        return dict(zip(self._evaluator.output_names, outputs, strict=True))


def open_runner(
    source: str | bytes,
    providers: Sequence[Any] | None = None,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
    fallback: bool = True,
) -> tuple[Callable[[str | bytes], Runner], Runner, str | None]:
    """Opens a model on onnxruntime or, failing that and if allowed, on the reference evaluator.

    Returns:
        How to open another model the same way; the runner; and why onnxruntime did not take
        the model, or None if it did.

    Raises:
        CannotLoad: None of them takes the model.
        UsageError: onnxruntime does not take a library.
    """

    def on_onnxruntime(model: str | bytes) -> Runner:
        return OnnxruntimeRunner(model, providers, custom_ops)

    try:
        return on_onnxruntime, on_onnxruntime(source), None
    except CannotLoad as error:
        if not fallback:
            raise
        reason = str(error)
    try:
        return ReferenceRunner, ReferenceRunner(source), reason
    except CannotLoad as error:
        raise CannotLoad(f"onnxruntime: {reason}; onnx reference evaluator: {error}") from error
