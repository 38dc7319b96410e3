"""Certify a rule: what it rewrites computes the same bits on onnxruntime, whatever the inputs.

    certify(add_zero, graph("float[N,3] x", "y = Add(x, c)", c=np.float32(-0.0)))
    refuse(add_zero, graph("float[N,3] x", "y = Add(x, c)", c=np.float32(0.0)))

Each instance also runs with its constants as Constant nodes and inside the branch of an If, with
several sizes for each symbolic dim, and with NaN, infinities, both zeros and subnormals as inputs.

Some models that differ from an instance (``rule_mutants.py``) are rewritten, too: where the rule
fires and onnxruntime takes the model the bits must be the same. `MUTANTS=10000 pytest tests/rules`
tries them all, in ten minutes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random as random_choice
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx.printer import to_text
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from reference_session import reference_session
from rule_mutants import changes, mutant, pairs

from onnxfold.analysis.constness import RECORD_KEY
from onnxfold.options import Options
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import Rule, RuleSet

SIZES = (1, 2, 5, 0)
"""Sizes tried for symbolic dims; the n-th dim begins elsewhere in the list, so that they differ."""

_ROUNDS = 3
_MUTANTS = int(os.environ.get("MUTANTS", "4"))
_SEED = int(os.environ.get("MUTANTS_SEED", "0"))
_LOOSE = 0.05
"""Error of an inexact rule on a mutant relative to the largest value: dtypes are narrow there."""


@dataclass
class Instance:
    """A model around a pattern, and how to run it."""

    model: onnx.ModelProto
    sizes: dict[str, Iterable[int]] = field(default_factory=dict)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    copies: int = 1
    """How many times the pattern is in the model."""


def graph(
    inputs: str,
    *nodes: str,
    outputs: str | None = None,
    opset: int = 17,
    domains: dict[str, int] | None = None,
    sizes: dict[str, Iterable[int]] | None = None,
    feeds: dict[str, np.ndarray] | None = None,
    runtime: str = "",
    **constants: Any,
) -> Instance:
    """An instance from onnx's text format.

    Args:
        inputs: As in ``"float[N,3] x, int64[2] s, float scalar, float[] any_rank"``.
        nodes: As in ``"y = Transpose<perm=[1,0]>(x)"``.
        outputs: Names of the outputs; by default what the last node makes.
        opset: Version of ONNX's own ops.
        domains: Other domains and their versions.
        sizes: Sizes for symbolic dims, where the usual ones would not do.
        feeds: Arrays for inputs that must not be random (indices, shapes).
        runtime: Inputs that are runtime constants, separated by blanks.
        constants: Initializers by name: arrays, NumPy scalars, ``ir.Tensor``.
    """
    names = outputs or nodes[-1].split("=")[0].strip()
    imports = ", ".join(f'"{d}": {v}' for d, v in {"": opset, **(domains or {})}.items())
    text = f"<ir_version: 10, opset_import: [{imports}]> g ({inputs}) => ({names}) {{"
    model = onnx.parser.parse_model(text + "\n".join(nodes) + "}")
    for name, array in constants.items():
        model.graph.initializer.append(_tensor(name, array))
    if runtime:
        helper.set_model_props(model, {RECORD_KEY: json.dumps(runtime.split())})
    _declare_outputs(model)
    return Instance(model, dict(sizes or {}), dict(feeds or {}))


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Normally distributed elements, the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def certify(
    rules: Rule | tuple[Rule, ...],
    *instances: Instance,
    tolerance: float = 0.0,
    times: int | None = None,
    target: str | None = None,
    check: Callable[[onnx.ModelProto], None] | None = None,
) -> None:
    """Assert that the rules fire on every instance and that the results stay the same.

    Args:
        rules: The rule, or several.
        instances: Models that hold its pattern.
        tolerance: Largest error relative to the largest value of what fires at level 2 only; 0
            asks for equal bits at level 1.
        times: How often the rules must fire; at least once if not given.
        target: The target to rewrite for.
        check: What else is asserted of a rewritten instance.
    """
    found = _rule_set(rules)
    for instance in instances:
        for variant in _variants(instance):
            rewritten, count, level = _rewrite(found, variant.model, target)
            assert count, f"{found.name} does not match\n{to_text(variant.model)}"
            fired = count // variant.copies
            assert times in (None, fired), (
                f"{found.name} fired {fired} times\n{to_text(variant.model)}"
            )
            assert level == 1 or tolerance, f"{found.name} is inexact here: give a tolerance"
            assert level == 2 or not tolerance, f"{found.name} is exact here: give no tolerance"
            if check is not None and variant is instance:
                check(rewritten)
            onnx.checker.check_model(rewritten)
            compared = _compare(variant, rewritten, tolerance)
            assert compared, (
                f"{found.name}: no sizes at which the model runs\n{to_text(variant.model)}"
            )
        _certify_mutants(found, instance)


def refuse(
    rules: Rule | tuple[Rule, ...],
    *instances: Instance,
    target: str | None = None,
) -> None:
    """Assert that none of the rules fires on any of the instances."""
    found = _rule_set(rules)
    for instance in instances:
        for variant in _variants(instance):
            model = ir.from_proto(variant.model)
            simplify = Simplify([found], options=Options(level=2, target=target))
            simplify(model)
            assert not simplify.report.total, (
                f"{found.name} must not match\n{to_text(variant.model)}"
            )
            assert not simplify.report.rejected, (
                f"{found.name} nearly matched\n{to_text(variant.model)}"
            )
            assert not simplify.report.baffled, (
                f"{found.name} could not tell\n{to_text(variant.model)}"
            )
        _certify_mutants(found, instance)


def _rule_set(rules: Rule | tuple[Rule, ...]) -> RuleSet:
    """Several rules as a set, named after them."""
    several = rules if isinstance(rules, tuple) else (rules,)
    return RuleSet(", ".join(rule.label for rule in several), several)


def _certify_mutants(found: RuleSet, instance: Instance) -> None:
    """Wherever a rule fires on a mutant that runs, the bits are the same."""
    ours = all(rule.ours for rule in found)
    single = changes(instance.model) if ours and _refuses_nonsense() else []
    rng = random_choice.Random(_SEED)
    several = rng.sample(single, min(_MUTANTS, len(single)))
    for what, change in itertools.chain(several, pairs(single, _MUTANTS, rng)):
        try:
            model = mutant(instance.model, change)
        except Exception:  # the second change needs what the first has removed
            continue
        rewritten = ir.from_proto(model)
        target = found.rules[0].target
        # where a rule is inexact, tame numbers still give nearly the same
        for level in (1, 2):
            simplify = Simplify([found], options=Options(level=level, target=target))
            simplify(rewritten)
            if simplify.report.total:
                break
        else:
            continue
        feeds = {
            i.name: instance.feeds[i.name].astype(ir.DataType(i.type.tensor_type.elem_type).numpy())
            for i in model.graph.input
            if i.name in instance.feeds
            and instance.feeds[i.name].ndim == len(i.type.tensor_type.shape.dim)
        }
        compared = Instance(model, instance.sizes, feeds)
        try:
            reference_session(model)
        except Exception:  # it is no valid model
            continue
        tolerance, rounds = (0.0, _ROUNDS) if level == 1 else (_LOOSE, 1)
        try:
            _compare(compared, ir.to_proto(rewritten), tolerance, rounds)
        except Exception as error:
            text = f"{found.name} {what}\n{to_text(instance.model)}"
            raise AssertionError(f"{text}\n{error}") from error


_NONSENSE = """
import contextlib
import numpy, onnx.parser, onnxruntime

HEAD = '<ir_version: 10, opset_import: ["" : 18]> g (int32[N] x) => (int32[M] y) <int64 a = {0}>'
for body, size in (("y = Div (x, x)", 1), ("y = ReduceSum (x, a)", 0)):
    model = onnx.parser.parse_model(f"{HEAD} {{ {body} }}").SerializeToString()
    with contextlib.suppress(Exception):
        onnxruntime.InferenceSession(model).run(None, {"x": numpy.zeros(size, "int32")})
"""


@functools.cache
def _refuses_nonsense() -> bool:
    """Whether onnxruntime survives what mutants may ask for: older releases end the process."""
    done = subprocess.run([sys.executable, "-c", _NONSENSE], capture_output=True)
    return done.returncode == 0


# -------------------------------------------------------------------- rewriting


def _rewrite(
    found: RuleSet, proto: onnx.ModelProto, target: str | None
) -> tuple[onnx.ModelProto, int, int]:
    """The rewritten model, how often the rules fired, and the level that it took."""
    for level in (1, 2):
        model = ir.from_proto(proto)
        simplify = Simplify([found], options=Options(level=level, target=target))
        simplify(model)
        report = simplify.report
        assert not report.rejected, f"{found.name} changes a dtype or shape"
        assert not report.loops, f"{found.name} goes on for ever"
        assert not report.baffled, f"{found.name} raises"
        if report.total:
            break
    return ir.to_proto(model), report.total, level


def _variants(instance: Instance) -> Iterator[Instance]:
    """The model as it is, with Constant nodes, and inside a branch."""
    yield instance
    if instance.model.graph.initializer:
        yield Instance(_with_constant_nodes(instance.model), instance.sizes, instance.feeds)
    if instance.model.opset_import[0].version >= 11:
        inside = _inside_branch(instance.model)
        feeds = {**instance.feeds, "condition__": np.array(True)}
        yield Instance(inside, instance.sizes, feeds, copies=2)


def _with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    inputs = {value.name for value in changed.graph.input}
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in changed.graph.initializer
        if tensor.name not in inputs
    ]
    nodes.extend(changed.graph.node)
    kept = [tensor for tensor in changed.graph.initializer if tensor.name in inputs]
    del changed.graph.initializer[:]
    changed.graph.initializer.extend(kept)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return changed


def _inside_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """The nodes in both branches of an If; inputs and initializers stay outside."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    outer = changed.graph
    branches = []
    for branch in ("then", "else"):
        body = onnx.GraphProto(name=branch)
        body.node.extend(outer.node)
        body.output.extend(outer.output)
        made = {name for node in body.node for name in node.output if name}
        _rename(body, {name: f"{name}_{branch}" for name in made})
        branches.append(body)
    del outer.node[:]
    outer.node.append(
        helper.make_node(
            "If",
            ["condition__"],
            [o.name for o in outer.output],
            then_branch=branches[0],
            else_branch=branches[1],
        )
    )
    outer.input.append(helper.make_tensor_value_info("condition__", onnx.TensorProto.BOOL, []))
    return changed


def _rename(body: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in body.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for output in body.output:
        output.name = names.get(output.name, output.name)


# -------------------------------------------------------------------- running


def _compare(
    instance: Instance, rewritten: onnx.ModelProto, tolerance: float, rounds: int = _ROUNDS
) -> int:
    """Run both at every choice of sizes; the number of runs that could be compared."""
    before, after = reference_session(instance.model), None
    compared = 0
    for sizes in _size_choices(instance):
        for seed in range(rounds):
            feeds = _feeds(instance, sizes, seed)
            try:
                expected = before.run(None, feeds)
            except Exception:  # these sizes do not fit together
                break
            after = after or reference_session(rewritten)
            try:
                got = after.run(None, feeds)
            except Fail:
                if 0 not in sizes.values():
                    raise
                break  # onnxruntime's MatMul of unsigned integers fails over no elements
            for wanted, found in zip(expected, got, strict=True):
                _assert_same(wanted, found, tolerance, f"sizes {sizes}, seed {seed}")
            compared += 1
    return compared


def _size_choices(instance: Instance) -> Iterator[dict[str, int]]:
    names = list(
        dict.fromkeys(
            d.dim_param
            for i in instance.model.graph.input
            for d in i.type.tensor_type.shape.dim
            if d.dim_param
        )
    )
    if len(names) <= 2:
        choices = [tuple(instance.sizes.get(name, SIZES)) for name in names]
        for sizes in itertools.product(*choices):
            yield dict(zip(names, sizes, strict=True))
        return
    for turn in range(len(SIZES)):
        for shift in (0, 1):
            yield {
                name: (choice := tuple(instance.sizes.get(name, SIZES)))[
                    (turn + k * shift) % len(choice)
                ]
                for k, name in enumerate(names)
            }


def _feeds(instance: Instance, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds = dict(instance.feeds)
    for value in instance.model.graph.input:
        if value.name in feeds:
            continue
        tensor = value.type.tensor_type
        shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
        feeds[value.name] = hostile_array(shape, ir.DataType(tensor.elem_type).numpy(), rng, seed)
    return feeds


def hostile_array(
    shape: Iterable[int], dtype: np.dtype[Any], rng: np.random.Generator, seed: int
) -> np.ndarray:
    """Random elements; from the second seed on, with those that break careless rewrites."""
    shape = tuple(shape)
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        small = rng.integers(max(-9, info.min), 9, shape)
        extremes = rng.choice([info.min, info.max, 0, 1], shape)
        return np.where(rng.random(shape) < 0.3 * bool(seed), extremes, small).astype(dtype)
    array = (rng.standard_normal(shape) * 4).astype(np.float32)
    if seed:
        tiny = 1e-40 if dtype.itemsize >= 4 else 6e-8
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 1.0, 65504.0, -1.0]
        array = np.where(rng.random(shape) < 0.5, rng.choice(special, shape), array)
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype)


def _assert_same(wanted: Any, found: Any, tolerance: float, where: str) -> None:
    assert wanted.dtype == found.dtype, f"{wanted.dtype} became {found.dtype} at {where}"
    assert wanted.shape == found.shape, f"{wanted.shape} became {found.shape} at {where}"
    if wanted.dtype.kind not in "fV":
        np.testing.assert_array_equal(found, wanted, err_msg=where)
        return
    left, right = (a.astype(np.float64) for a in (wanted, found))
    if not tolerance:
        np.testing.assert_array_equal(right, left, err_msg=where)  # a NaN equals a NaN
        same_sign = (np.signbit(left) == np.signbit(right)) | np.isnan(left)
        assert same_sign.all(), f"a zero changed its sign at {where}"
        return
    finite = np.isfinite(left) & np.isfinite(right)
    scale = float(np.abs(left[finite]).max(initial=1e-30))
    difference = float(np.abs(left[finite] - right[finite]).max(initial=0.0))
    assert difference <= tolerance * scale, f"error {difference / scale:.2g} at {where}"


# -------------------------------------------------------------------- building


def _tensor(name: str, array: Any) -> onnx.TensorProto:
    if isinstance(array, onnx.TensorProto):
        named = onnx.TensorProto()
        named.CopyFrom(array)
        named.name = name
        return named
    if isinstance(array, ir.TensorProtocol):
        made = ir.serde.serialize_tensor(array)
        made.name = name
        return made
    if type(array) in (bool, int, float, list):
        default = np.asarray(array)
        array = default.astype(np.float32) if default.dtype.kind == "f" else default
    array = np.asarray(array)
    return ir.serde.serialize_tensor(ir.Tensor(array, name=name))


def _declare_outputs(model: onnx.ModelProto) -> None:
    """The checker wants types; what onnx cannot infer, onnxruntime may know."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    known = {o.name: o for o in inferred.graph.output}
    for output in model.graph.output:
        if known[output.name].type.WhichOneof("value"):
            output.type.CopyFrom(known[output.name].type)
            for dim in output.type.tensor_type.shape.dim:
                if re.match(r"unk__", dim.dim_param):
                    dim.ClearField("dim_param")
    if all(output.type.WhichOneof("value") for output in model.graph.output):
        return
    with contextlib.suppress(Fail):  # a model that rules must refuse may be none that runs
        for output, made in zip(
            model.graph.output, reference_session(model).get_outputs(), strict=True
        ):
            elem = onnx.parser.parse_graph(f"g ({made.type[7:-1]} x) => () {{}}").input[0]
            output.type.CopyFrom(elem.type)
            for _ in made.shape:
                output.type.tensor_type.shape.dim.add()
