"""Running a model: on onnxruntime, or on onnx's reference evaluator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

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
Outputs = dict[str, Output]
Runner = Callable[[Feeds], Outputs]
"""Runs one model: returns its outputs by name, and raises `CannotRun` where it fails."""
Opener = Callable[[str | bytes], Runner]
"""Opens a model by path or bytes; raises `CannotLoad` if the runtime does not take it."""


class CannotLoad(Exception):
    """The runtime does not take the model."""


class CannotRun(Exception):
    """The runtime took the model but failed on these feeds."""


def open_runner(
    source: str | bytes,
    providers: Sequence[Any] | None = None,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
    fallback: bool = True,
) -> tuple[Opener, Runner, str | None]:
    """Open a model on onnxruntime or, failing that and if allowed, on the reference evaluator.

    On onnxruntime it runs node by node: optimizations and prepacking are off. Prepacking sums a
    product with a constant operand in another order: with it, folding something into a constant
    would change last bits.

    Returns:
        How to open another model the same way; the runner; and why onnxruntime did not take
        the model, or None if it did.

    Raises:
        CannotLoad: None of them takes the model.
        UsageError: onnxruntime does not take a library.
    """

    def on_onnxruntime(model: str | bytes) -> Runner:
        options = session_options(node_by_node=True)
        register_custom_ops(options, custom_ops)
        try:
            session = open_session(model, options, providers or CPU)
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise CannotLoad(message_of(error)) from error
        names = [output.name for output in session.get_outputs()]
        ends = [*session.get_inputs(), *session.get_outputs()]
        if not any(is_foreign(end.type) for end in ends):
            return _runner(names, lambda feeds: session.run(names, feeds))

        def run(feeds: Feeds) -> list[Output]:
            values = {name: ort_value(feed) for name, feed in feeds.items()}
            return list(map(array_of, session.run_with_ort_values(names, values)))

        return _runner(names, run)

    try:
        return on_onnxruntime, on_onnxruntime(source), None
    except CannotLoad as error:
        if not fallback:
            raise
        reason = str(error)
    try:
        return _on_evaluator, _on_evaluator(source), reason
    except CannotLoad as error:
        raise CannotLoad(f"onnxruntime: {reason}; onnx reference evaluator: {error}") from error


def _on_evaluator(source: str | bytes) -> Runner:
    """Open a model on onnx's reference evaluator: slow, but it knows the ops of the standard."""
    from onnx.reference import ReferenceEvaluator

    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else source
        evaluator = ReferenceEvaluator(model)
    except Exception as error:  # anything, for a model that is not valid
        raise CannotLoad(message_of(error)) from error
    return _runner(evaluator.output_names, lambda feeds: evaluator.run(None, feeds))


def _runner(names: Sequence[str], run: Callable[[Feeds], Any]) -> Runner:
    def named(feeds: Feeds) -> Outputs:
        try:
            with np.errstate(all="ignore"):
                return dict(zip(names, run(feeds), strict=True))
        except Exception as error:
            raise CannotRun(message_of(error)) from error

    return named
