"""Apply rules to models, and compare the outputs before and after on adversarial inputs."""

from __future__ import annotations

import contextvars
import copy
import functools
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import compose, helper

from onnxfold.analysis.facts import facts_of
from onnxfold.api.options import Level, Options
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import Rule, RuleSet
from onnxfold.rewrite.driver import RewriteReport
from onnxfold.support import isolated
from onnxfold.support.onnxruntime_sessions import (
    message_of,
    open_session,
    register_custom_ops,
    session_options,
)
from onnxfold.tools.comparison.feeds import integer_range, random_floats
from onnxfold.tools.comparison.pair import compare_values
from onnxfold.tools.comparison.result import OutputResult, Tolerance

Array = np.ndarray[Any, Any]

_SIZES = (1, 2, 5, 0)
"""Sizes of a dynamic dimension to test."""
_SPECIAL_FLOATS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 65504.0)
"""Adversarial elements of floating-point inputs. The last one is the largest float16."""
_ADVERSARIAL_SHARES = (0.0, 0.5, 0.5, 1.0)
"""The share of adversarial elements in each run. Inexact rules skip the last run."""
_MAX_INTEGER_SHARE = 0.6
"""Integers have this fraction of the share in `_ADVERSARIAL_SHARES`."""
_MAX_SECONDS = 60.0
"""Limit of wall time in seconds for a comparison in another process."""
LIBRARIES = contextvars.ContextVar[Sequence[str]]("libraries", default=())
"""Paths of shared libraries with custom ops of the models that run."""
LOOSE = 0.05
"""The maximum error of an inexact rule on a changed example, which may have a narrow dtype."""


class NeverRuns(Exception):
    """onnxruntime does not run a model with any of the tested sizes."""


class Instance(NamedTuple):
    """A model, with sizes and inputs for its runs."""

    model: onnx.ModelProto
    sizes: Mapping[str, Sequence[int]]
    """Sizes of dynamic dimensions to test, by name. Other dimensions have default sizes."""
    feeds: Mapping[str, Array]
    """Inputs with fixed elements, by name."""
    copies: int = 1
    """The number of copies of the original nodes in the model."""


def variants(instance: Instance) -> Iterator[Instance]:
    """Yield the instance and its variants.

    If the model has initializers, they are Constant nodes in the first variant. Both branches of an
    If contain all nodes in the second variant, which requires opset 11.
    """
    yield instance
    if instance.model.graph.initializer:
        changed = copy.deepcopy(instance.model)
        graph = changed.graph
        inputs = {value.name for value in changed.graph.input}
        constants = [tensor for tensor in graph.initializer if tensor.name not in inputs]
        overridable = [tensor for tensor in graph.initializer if tensor.name in inputs]
        nodes = [helper.make_node("Constant", [], [each.name], value=each) for each in constants]
        _replace_elements(graph.node, [*nodes, *graph.node])
        _replace_elements(graph.initializer, overridable)
        yield instance._replace(model=changed)
    if instance.model.opset_import[0].version >= 11:
        changed = copy.deepcopy(instance.model)
        graph = changed.graph
        branches = {}
        for name in ("then_branch", "else_branch"):
            branches[name] = compose.add_prefix_graph(
                graph, f"{name}_", rename_inputs=False, rename_initializers=False
            )
            for field in (branches[name].input, branches[name].initializer):
                _replace_elements(field, [])
        outputs = [value.name for value in graph.output]
        _replace_elements(graph.node, [helper.make_node("If", ["condition"], outputs, **branches)])
        graph.input.append(helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []))
        feeds = {**instance.feeds, "condition": np.array(True)}
        yield Instance(changed, instance.sizes, feeds, copies=2)


def _replace_elements(field: Any, elements: list[Any]) -> None:
    del field[:]
    field.extend(elements)


def find_difference(instance: Instance, other: onnx.ModelProto, tolerance: float = 0.0) -> str:
    """Run two models with several sizes, and return the first difference, or "" if there is none.

    It is also a difference if only the second model does not run. The models run in another
    process, because onnxruntime may crash.

    Args:
        instance: The first model.
        other: The second model.
        tolerance: The maximum error relative to the largest element, or 0 for equal bits.

    Raises:
        NeverRuns: onnxruntime does not run the first model.
    """
    request = np.frombuffer(pickle.dumps((instance, other, tolerance, LIBRARIES.get())), np.uint8)
    try:
        (runs, answer), _ = isolated.run(
            f"{__name__}:compare_pickled", None, [request], seconds=_MAX_SECONDS, keep=True
        )
    except isolated.Failure as failure:
        runs = instance.model != other
        answer = f"onnxruntime fails: {failure}"
    if not runs:
        raise NeverRuns(answer)
    return str(answer)


def compare_pickled(request: None, arrays: Sequence[Array]) -> tuple[Any, list[Array]]:
    """Compare two pickled models in this process, see `find_difference`.

    Args:
        request: Not used.
        arrays: An array with the pickled instance, model, tolerance and paths of libraries.

    Returns:
        A pair: whether the first model runs, and the first difference, or the reason why the model
        does not run. The second element is empty.
    """
    instance, other, tolerance, libraries = pickle.loads(arrays[0].tobytes())
    options = session_options(threads=1, node_by_node=True)
    register_custom_ops(options, libraries)
    after = None
    reason = ""
    seeds = range(len(_ADVERSARIAL_SHARES) - (tolerance > 0))
    try:
        before = open_session(instance.model.SerializeToString(), options)
    except Exception as error:  # onnxruntime's exceptions have no common base class
        return (False, message_of(error)), []
    for sizes, seed in itertools.product(_size_choices(instance), seeds):
        feeds = _feeds(instance, sizes, seed)
        try:
            expected = before.run(None, feeds)
        except Exception as error:
            reason = message_of(error)
            continue  # the sizes may not be compatible
        try:
            after = after or open_session(other.SerializeToString(), options)
            actual = after.run(None, feeds)
        except Exception as error:
            if after is None or 0 not in sizes.values():
                return (True, f"onnxruntime fails: {message_of(error)}"), []
            continue  # onnxruntime's MatMul of unsigned integers fails on empty operands
        for old, new in zip(expected, actual, strict=True):
            results = compare_values(old, new, Tolerance())
            lists = (value if isinstance(value, list) else [value] for value in (old, new))
            for result, old_array, new_array in zip(results, *lists, strict=False):
                if fault := _fault(result, old_array, new_array, tolerance):
                    return (True, f"{fault} at {sizes}" if sizes else fault), []
    return (after is not None, reason if after is None else ""), []


def _fault(result: OutputResult, expected: Array, actual: Array, tolerance: float) -> str:
    """Return a description of the difference of a result, or "" if it is within the tolerance."""
    if result.note is not None or result.bit_equal:
        return result.note or ""
    if not tolerance or result.max_ulp is None:
        pairs = zip(map(str, np.ravel(expected)), map(str, np.ravel(actual)), strict=True)
        first = next((f" ({a} becomes {b})" for a, b in pairs if a != b), "")
        return f"{result.differing} of {result.elements} elements differ{first}"
    magnitudes = np.abs(expected.astype(np.float64))
    error = result.max_abs_error / magnitudes.max(initial=1e-30, where=np.isfinite(magnitudes))
    return "" if error <= tolerance else f"error {error:.2g} of the largest element"


def _size_choices(instance: Instance) -> list[dict[str, int]]:
    """Return combinations of sizes of dynamic dimensions.

    The result has all combinations for two dimensions, and some for more dimensions.
    """
    inputs = (value.type.tensor_type.shape.dim for value in instance.model.graph.input)
    names = dict.fromkeys(d.dim_param for dims in inputs for d in dims if d.dim_param)
    lists = {name: instance.sizes.get(name, _SIZES) for name in names}
    indices = range(max(map(len, lists.values()), default=1))
    choices: list[dict[str, int]] = []
    for shift, index in itertools.product(indices, indices):
        items = enumerate(lists.items())
        sizes = {name: options[(index + k * shift) % len(options)] for k, (name, options) in items}
        if sizes not in choices:
            choices.append(sizes)
    return choices


def _feeds(instance: Instance, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    feeds = dict(instance.feeds)
    for value in instance.model.graph.input:
        if value.name not in feeds:
            tensor = value.type.tensor_type
            shape = [sizes.get(d.dim_param, d.dim_value) for d in tensor.shape.dim]
            dtype = ir.DataType(tensor.elem_type)
            feeds[value.name] = _elements(shape, dtype, rng, _ADVERSARIAL_SHARES[seed])
    return feeds


def _elements(
    shape: Sequence[int], dtype: ir.DataType, rng: np.random.Generator, share: float
) -> Array:
    """Return random elements, with a share of adversarial elements for numbers."""
    if dtype in (ir.DataType.BOOL, ir.DataType.STRING):
        kind = bool if dtype == ir.DataType.BOOL else str
        return np.asarray(rng.random(shape) < 0.5).astype(kind)
    if dtype.is_integer():
        low, end = integer_range(dtype)
        small = rng.integers(max(-9, low), min(9, end), shape)
        special = rng.choice(np.array([low, end - 1, 0, 1], dtype.numpy()), shape)
        is_special = rng.random(shape) < _MAX_INTEGER_SHARE * share
        return np.where(is_special, special, small.astype(dtype.numpy()))
    limits = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
    limited = [1e-40, float(limits.smallest_normal), float(limits.smallest_subnormal)]
    if share == 1:  # inexact rules skip this run, because the largest number may overflow
        limited.append(float(limits.max))
    special = np.resize(rng.permutation([*_SPECIAL_FLOATS, *limited, *np.negative(limited)]), shape)
    array = random_floats(rng, dtype, shape) * np.asarray(4, dtype.numpy())
    return np.where(rng.random(shape) < share, special, array).astype(dtype.numpy())


# -------------------------------------------------------------------- models after rules


class Rewritten(NamedTuple):
    """A model after rules were applied."""

    model: ir.Model
    report: RewriteReport
    level: int
    """The level at which a rule applied, or the last level if no rule applied."""

    def find_fault(self, before: Instance, tolerance: float) -> str:
        """Return the fault of the model or of the rules, or "" without a fault.

        Args:
            before: The model before the rules.
            tolerance: The maximum error relative to the largest element, if the level is 2.
                Otherwise the bits must be equal.

        Raises:
            NeverRuns: onnxruntime does not run the model before the rules.
        """
        for failures, fault in (
            (self.report.rejected, "the result has a different dtype or shape"),
            (self.report.failed_on_invalid, "the rule raises an exception"),
            (self.report.loops, "the rules undo each other repeatedly"),
        ):
            if failures:
                return fault
        after = ir.to_proto(self.model)
        if reason := find_model_error(after):
            find_difference(before, before.model)  # raises NeverRuns if the original is not valid
            return f"the model is not valid: {reason}"
        return find_difference(before, after, tolerance * (self.level > 1))


_OTHER_DOMAIN = "com.microsoft"


@functools.cache
def _first_opsets() -> Mapping[str, int]:
    """Return the first opset of each op that onnxruntime has in ONNX's domain."""
    from onnxruntime.capi import onnxruntime_pybind11_state

    first: dict[str, int] = {}
    for schema in onnxruntime_pybind11_state.get_all_operator_schema():
        if not schema.domain:
            previous = first.get(schema.name, schema.since_version)
            first[schema.name] = min(previous, schema.since_version)
    return first


def _without_additions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model that onnx can check.

    Ops that only onnxruntime has in ONNX's domain move to a domain that onnx does not check.
    """
    changed = copy.deepcopy(model)
    (version,) = (opset.version for opset in model.opset_import if not opset.domain)
    graphs = [changed.graph]
    is_changed = False
    while graphs:
        for node in graphs.pop().node:
            graphs += [each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]
            if node.domain or onnx.defs.has(node.op_type, version, ""):
                continue
            if _first_opsets().get(node.op_type, version + 1) <= version:
                node.domain = _OTHER_DOMAIN
                is_changed = True
    if is_changed and all(opset.domain != _OTHER_DOMAIN for opset in model.opset_import):
        changed.opset_import.append(helper.make_opsetid(_OTHER_DOMAIN, 1))
    return changed


def find_model_error(model: onnx.ModelProto) -> str:
    """Return the reason why onnx's checker or shape inference rejects a model, or ""."""
    compatible = _without_additions(model)
    checked = copy.deepcopy(compatible)
    for output in checked.graph.output:  # the checker requires types, but does not compare them
        output.CopyFrom(helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, []))
    try:
        onnx.checker.check_model(checked)
        onnx.shape_inference.infer_shapes(compatible, check_type=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return message_of(error)
    return ""


def remaining_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of the main graph whose results are not constant."""
    constness = facts_of(model).constness
    return [node for node in model.graph if not all(map(constness.is_constant, node.outputs))]


def rewrite(
    rules: Sequence[Rule], model: onnx.ModelProto, levels: Sequence[Level] = (1, 2)
) -> Rewritten:
    """Apply rules of one target to a model.

    Args:
        rules: The rules.
        model: The model, which does not change.
        levels: The levels to try in order, until a rule applies.

    Returns:
        The model after the first level at which a rule applies, or after the last level.
    """
    for level in levels:
        rewritten = ir.from_proto(model)
        options = Options(level=level, target=cast(Any, rules[0].target))
        simplify = Simplify([RuleSet("tested", tuple(rules))], options=options)
        simplify(rewritten)
        if simplify.report.counts:
            break
    return Rewritten(rewritten, simplify.report, level)
