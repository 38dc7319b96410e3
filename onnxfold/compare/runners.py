"""Running a model: on onnxruntime, or on onnx's reference evaluator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfold.compare.random_feeds import Array, Feed, Feeds

if TYPE_CHECKING:
    import onnxruntime

Output = Feed
DEFAULT_PROVIDERS = ("CPUExecutionProvider",)


class CannotLoad(Exception):
    """The runtime does not take the model."""


class CannotRun(Exception):
    """The runtime took the model but failed on these feeds."""


class Runner(Protocol):
    """Runs one model."""

    def run(self, feeds: Feeds) -> dict[str, Output]:
        """Outputs by name; raises `CannotRun`."""


class OnnxruntimeRunner:
    """Node by node on onnxruntime: optimizations and prepacking are off.

    Prepacking sums a product with a constant operand in another order: with it, folding
    something into a constant would change last bits.

    Raises:
        CannotLoad: onnxruntime does not take the model.
    """

    name = "onnxruntime"

    def __init__(self, source: str | bytes, providers: Sequence[Any] | None = None) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = 4
        # an output would keep all memory of the arena that it lies in, after the session is closed
        options.enable_cpu_mem_arena = False
        # learning where tensors could lie in later runs takes time quadratic in the nodes
        options.enable_mem_pattern = False
        try:
            self._session = ort.InferenceSession(
                source, options, providers=list(providers or DEFAULT_PROVIDERS)
            )
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise CannotLoad(first_line(error)) from error
        packed = [arg.name for arg in self._session.get_inputs() if _is_packed(arg.type)]
        if packed:
            raise CannotLoad(f"its Python interface cannot feed {packed[0]!r}: a packed type")
        self._outputs = [output.name for output in self._session.get_outputs()]
        types = [arg.type for arg in [*self._session.get_inputs(), *self._session.get_outputs()]]
        self._plain = all(_numpy_knows(type_) for type_ in types)

    def run(self, feeds: Feeds) -> dict[str, Output]:
        """Outputs by name."""
        run = self._session.run if self._plain else self._run_with_ort_values
        try:
            return dict(zip(self._outputs, run(self._outputs, feeds), strict=True))
        except Exception as error:
            raise CannotRun(first_line(error)) from error

    def _run_with_ort_values(self, names: list[str], feeds: Feeds) -> list[Output]:
        """For types that NumPy does not have: bfloat16, float8, ..."""
        values = {name: ort_value(feed) for name, feed in feeds.items()}
        return [array_of(value) for value in self._session.run_with_ort_values(names, values)]


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
            raise CannotLoad(first_line(error)) from error

    def run(self, feeds: Feeds) -> dict[str, Output]:
        """Outputs by name."""
        try:
            with np.errstate(all="ignore"):
                outputs = self._evaluator.run(None, feeds)
        except Exception as error:
            raise CannotRun(first_line(error)) from error
        return dict(zip(self._evaluator.output_names, outputs, strict=True))


def open_runner(
    source: str | bytes, providers: Sequence[Any] | None = None, fallback: bool = True
) -> tuple[Callable[[str | bytes], Runner], Runner, str | None]:
    """Opens a model on onnxruntime or, failing that and if allowed, on the reference evaluator.

    Returns:
        How to open another model the same way; the runner; and why onnxruntime did not take
        the model, or None if it did.

    Raises:
        CannotLoad: None of them takes the model.
    """
    try:
        return (
            lambda other: OnnxruntimeRunner(other, providers),
            OnnxruntimeRunner(source, providers),
            None,
        )
    except CannotLoad as error:
        if not fallback:
            raise
        reason = str(error)
    try:
        return ReferenceRunner, ReferenceRunner(source), reason
    except CannotLoad as error:
        raise CannotLoad(f"onnxruntime: {reason}; onnx reference evaluator: {error}") from error


def first_line(error: Exception) -> str:
    """The message without its newlines, cut to a readable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def _numpy_knows(type_: str) -> bool:
    """Whether onnxruntime takes and gives values of the type as NumPy arrays."""
    return not (_is_packed(type_) or "bfloat16" in type_ or "float8" in type_)


def _is_packed(type_: str) -> bool:
    """Whether several elements share a byte; "int4)" so that int4 is found and int64 is not."""
    return any(f"{name})" in type_ for name in ("(int4", "uint4", "(int2", "uint2", "float4e2m1"))


def ort_value(feed: Feed) -> onnxruntime.OrtValue:
    """An array as onnxruntime takes it, of types that NumPy does not have, too.

    Raises:
        TypeError: It is a sequence or an optional.
    """
    import onnxruntime as ort

    if not isinstance(feed, np.ndarray):
        raise TypeError("onnxruntime takes sequences and optionals only beside NumPy's own types")
    element_type = onnx.helper.np_dtype_to_tensor_dtype(feed.dtype)
    if feed.dtype.kind != "V" and feed.dtype.isbuiltin:
        return ort.OrtValue.ortvalue_from_numpy(feed)
    words = np.ascontiguousarray(feed).view(f"u{feed.dtype.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, element_type)


def array_of(value: onnxruntime.OrtValue) -> Output:
    """An output as an array; types that NumPy does not have are read from memory."""
    if not value.is_tensor() or _numpy_knows(value.data_type()):
        result: Array = value.numpy()
        return result
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    tensor = onnx.TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=content)
    return numpy_helper.to_array(tensor)
