"""Optimize a model in several ways and compare the outputs of each result with the original.

The outputs must be equal bit for bit. Only variants that are not `Variant.exact` and models with
float16 or bfloat16 have a tolerance.
"""

import copy
import functools
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper

import onnxfold
from onnxfold.api.optimize import with_sizes
from onnxfold.api.options import Options
from onnxfold.ir.graphs import count_nodes
from onnxfold.tools.comparison.tolerances import HALF, types_in
from tests.case_driver import Failure, Phase, one_line, place_of
from tests.reference_session import Reference, same_bits
from tests.symbolic.fact_check import FactCheck

from .generate import Case

Feeds = dict[str, Any]
TOLERANCE = 1e-5
_PERTURBED_RUNS = 8
_EXACT = "_exact_"
# Parts of two messages of onnxruntime. The first is about empty images. The second is about a
# reused buffer that is too small, because a value does not have its declared or inferred shape.
EXCLUDED = re.compile(r"input_shape.Size\(\) > 0|Validate usage of dim_value")
_FLOATS = {"tensor(float)": onnx.TensorProto.FLOAT, "tensor(double)": onnx.TensorProto.DOUBLE}


@dataclass(frozen=True)
class Variant:
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    file: str = ""
    """Storage of the model: "" for memory, "inline" or "external" for data in files."""
    exact: bool = True
    """Whether the outputs must be equal bit for bit, except in models with float16 or bfloat16."""
    small: bool = True
    """Whether the model may grow only by ``max_growth``, or by the default of this option."""
    fixed: bool = False
    """Whether symbolic dims are fixed to their sizes in the first feed. No other feed is run."""


VARIANTS: dict[str, Variant] = {
    "O0": Variant({"level": 0}),
    "O1": Variant({"level": 1}),
    "all": Variant({"level": 1, "fold_all": True, "fold_quantized": True}, small=False),
    "inline": Variant({"level": 1}, file="inline"),
    "external": Variant({"level": 0}, file="external"),
    "spilled": Variant({"level": 1, "fold_all": True, "memory_limit": 1 << 10}, small=False),
    "fixed": Variant({"level": 1}, small=False, fixed=True),
    "no-growth": Variant({"level": 1, "max_growth": 0}),
    "propagation": Variant({"passes": ("constant-propagation",)}, small=False),
    "all-O0": Variant({"level": 0, "fold_all": True}, small=False),
    "O2": Variant({"level": 2}, exact=False, small=False),
    "onnxruntime": Variant({"level": 2, "target": "onnxruntime"}, exact=False, small=False),
}
_TURNS = {"O0": ("O0", "external"), "O1": ("O1", "inline"), "all": ("all", "spilled", "fixed")}
"""The variants that replace a requested variant. The seed selects one of them."""

DEFAULT = ("O0", "O1", "all")
BRANCHES = ("O0", "O1", "no-growth", "propagation", "all-O0")
"""Variants for `branch_models`."""
FACTS = "facts"
"""Name of the check that the values of the original satisfy the facts of the analysis."""


class NotComparable(Exception):
    """The original is invalid or does not run, or its outputs differ between two runs."""


class Original:
    """A model with its expected outputs for each feed on which the model runs.

    Args:
        model: The model.
        feeds: The feeds. A feed on which the model does not run is omitted.
        random: The names of the outputs that depend on random numbers.

    Raises:
        NotComparable: The model is invalid, runs on no feed, or has other outputs in a second run.
    """

    def __init__(self, model: onnx.ModelProto, feeds: list[Feeds], random: list[str]) -> None:
        self.model = model
        self.bytes = model.SerializeToString()
        self.names = [o.name for o in model.graph.output]
        self.random = set(random)
        try:
            onnx.checker.check_model(model)
            ort.set_seed(17)
            session = Reference(self.bytes)
        except Exception as error:
            raise NotComparable(one_line(error)) from error
        self.runs: list[tuple[Feeds, list[Any]]] = []
        for feed in feeds:
            try:
                self.runs.append((feed, session.run(feed)))
            except Exception as error:
                if not self.runs and feed is feeds[-1]:
                    raise NotComparable(one_line(error)) from error
        if not self.runs:
            raise NotComparable("no feed runs")
        self.run_again()
        self.dims = _sizes(model, self.runs[0][0])
        self.ops = ops_of(model)

    def run_again(self) -> None:
        """Run the model again with each feed and compare the outputs that are not random.

        Raises:
            NotComparable: An output differs, for example because it is uninitialized memory.
        """
        again = Reference(self.bytes)
        for feed, expected in self.runs:
            for name, one, other in zip(self.names, expected, again.run(feed), strict=True):
                if name not in self.random and not same_bits(one, other):
                    raise NotComparable("two runs differ")

    @functools.cached_property
    def half(self) -> float:
        """The tolerance relative to the largest number of an output.

        The tolerance is 0 if the model contains neither float16 nor bfloat16.
        """
        kinds = types_in(ir.from_proto(self.model))
        return max((most for kind, most in HALF.items() if kind in kinds), default=0.0)

    def perturbed(self, feed: Feeds, output: str) -> list[Any]:
        """Return the results of an output in several runs with random errors.

        In these runs, each float32 and float64 value of the main graph has a relative error of up
        to `TOLERANCE`. The list is empty if the changed model does not run.
        """
        ort.set_seed(17)
        try:
            model = _perturbing(self.model)
            session = Reference(model)
            renamed = {i.name.removesuffix(_EXACT): i.name for i in model.graph.input}
            feed = {renamed[name]: array for name, array in feed.items()}
            return [session.run(feed)[self.names.index(output)] for _ in range(_PERTURBED_RUNS)]
        except Exception:  # onnxruntime raises many classes
            return []


def check(case: Case, variants: tuple[str, ...], phase: Phase) -> list[Failure]:
    """Return at most one failure for each requested variant.

    Raises:
        NotComparable: The original is invalid or does not run, or its outputs differ between runs.
    """
    phase("original")
    original = Original(case.model, case.feeds, case.random)
    turns = [_TURNS.get(v, (v,)) for v in variants]
    chosen = [turn[(case.seed + k) % len(turn)] for k, turn in enumerate(turns)]
    return [f for v in chosen if (f := check_variant(original, v, phase)) is not None]


def check_variant(original: Original, name: str, phase: Phase) -> Failure | None:
    """Return the failure of one variant, or None if there is none.

    Args:
        original: The model to optimize.
        name: A name in `VARIANTS` or `SPLITS`, or `FACTS`.
        phase: Is called with the name.

    Raises:
        NotComparable: The outputs of the variant differ from the expected outputs, but the outputs
            of another run of the original differ, too.
    """
    from .split_check import check_split

    phase(name)
    with tempfile.TemporaryDirectory(prefix="random-graph-") as folder:
        if name == FACTS:
            failure = _check_facts(original)
        elif name in VARIANTS:
            failure = _check_in(Path(folder), original, name, VARIANTS[name])
        else:
            failure = check_split(Path(folder), original, name)
    if failure is not None and failure.kind in ("mismatch", "far"):
        original.run_again()
    return failure


def _check_facts(original: Original) -> Failure | None:
    try:
        check = FactCheck(original.model)
        for feed, _ in original.runs:
            check.check(feed)
    except Exception as error:
        kind = "wrong" if isinstance(error, AssertionError) else type(error).__name__
        return Failure(FACTS, kind, place_of(error), one_line(error))
    return None


def _check_in(folder: Path, original: Original, name: str, variant: Variant) -> Failure | None:
    try:
        proto, path, grown = _optimize(folder, original, variant)
    except Exception as error:
        return Failure(name, type(error).__name__, place_of(error), one_line(error))
    most = variant.options.get("max_growth", max(1 << 16, len(original.bytes) // 100))
    if variant.small and grown > most:
        return Failure(name, "grown", "", f"{grown} bytes more")
    difference = _interface(original.model, proto)
    if difference:
        return Failure(name, "interface", "", difference)
    try:
        onnx.checker.check_model(path or proto)
    except Exception as error:
        return Failure(name, "invalid", _gist(error), one_line(error))
    try:
        ort.set_seed(17)
        session = Reference(path or proto)
    except Exception as error:
        if "enable" in variant.options and "NOT_IMPLEMENTED" in str(error):
            return None  # opt-in rules create ONNX nodes that onnxruntime may not support
        if _is_refused(original, variant.fixed):
            return None
        return Failure(name, "refused", _gist(error), one_line(error))
    for feed, expected in original.runs[:1] if variant.fixed else original.runs:
        try:
            found = session.run(feed)
        except Exception as error:
            if original.random or EXCLUDED.search(str(error)):
                continue
            return Failure(name, "fails", _gist(error), one_line(error))
        merged = _merged(original, expected, found)
        if merged:
            return Failure(name, "merged", "", merged)
        for output, want, got in zip(original.names, expected, found, strict=True):
            if output in original.random:
                continue
            problem = problem_of(want, got, output, feed, original, variant)
            if problem is not None:
                kind, message = problem
                return Failure(name, kind, "", f"{output}: {message}")
    return None


def _optimize(
    folder: Path, original: Original, variant: Variant
) -> tuple[onnx.ModelProto, str, int]:
    """Return the optimized model, the path of its file, and the growth in bytes.

    The path is "" if the variant has no files. The growth includes external data.
    """
    model = onnx.ModelProto.FromString(original.bytes)
    if not variant.file:
        fixed = {"dims": original.dims} if variant.fixed else {}
        optimized = onnxfold.optimize(model, **variant.options, **fixed)
        return optimized, "", optimized.ByteSize() - len(original.bytes)
    # Every external tensor contains the name of its data file. Names of equal length keep the sizes
    # comparable.
    source = folder / "old.onnx"
    target = folder / "out" / "new.onnx"
    target.parent.mkdir()
    external = variant.file == "external"
    if external:
        onnx.save(
            model,
            source,
            save_as_external_data=True,
            location="old.onnx.data",
            size_threshold=0,
            convert_attribute=True,
        )
    else:
        source.write_bytes(original.bytes)
    onnxfold.optimize_file(source, target, fsync=False, **variant.options)
    before, after = (
        sum(f.stat().st_size for f in p.iterdir() if f.is_file()) for p in (folder, target.parent)
    )
    return onnx.load(target), str(target), after - before


def problem_of(
    want: Any, got: Any, output: str, feed: Feeds, original: Original, variant: Variant
) -> tuple[str, str] | None:
    """Return the kind of difference between two results and a message, or None.

    The result is None if the results are equal or their difference is allowed. In an inexact
    variant, floats may differ by `TOLERANCE` times the largest number. They may also differ by as
    much as the results of `Original.perturbed` do, because a cancellation of terms amplifies
    errors. Shapes and other elements may differ if they also differ in these results.
    """
    found = _compared(want, got, original.half, original.ops["Loop"] > 0)
    if found is None or variant.exact or found[0] == "dtype":
        return found
    if found[0] == "shape" and original.ops["Unique"]:
        return None  # the number of unique elements depends on the last bits of the elements
    if _is_near(want, got, original.perturbed(feed, output)):
        return None
    return ("far", found[1]) if found[0] == "mismatch" else found


def _compared(want: Any, got: Any, half: float, has_loops: bool) -> tuple[str, str] | None:
    if isinstance(want, list) or isinstance(got, list) or want is None or got is None:
        if type(want) is not type(got) or (want is not None and len(want) != len(got)):
            return "mismatch", "another sequence"
        pairs = zip(want or (), got or (), strict=True)
        return next(filter(None, (_compared(*pair, half, has_loops) for pair in pairs)), None)
    want, got = np.asarray(want), np.asarray(got)
    if want.dtype != got.dtype:
        return "dtype", f"{want.dtype} became {got.dtype}"
    if want.shape != got.shape:
        if not want.size and not got.size and has_loops:
            # the shapes of empty outputs of a Loop depend on onnxruntime's shape inference
            return None
        return "shape", f"{want.shape} became {got.shape}"
    if same_bits(want, got):
        return None
    text = f"{want.reshape(-1)[:8].tolist()} became {got.reshape(-1)[:8].tolist()}"
    if not half:
        return "mismatch", text
    if want.dtype.kind not in "fV":
        return None  # a rounding of float16 or bfloat16 can change other elements arbitrarily
    with np.errstate(all="ignore"):
        error = np.abs(_finite(want) - _finite(got))
    allowed = half * float(np.nanmax(np.abs(_finite(want)), initial=0.0))
    return None if np.nanmax(error, initial=0.0) <= allowed else ("half", text)


def _finite(array: np.ndarray) -> np.ndarray:
    """Convert to float64, and replace infinities by 65504 or -65504, the limits of float16."""
    wide = array.astype(np.float64)
    return np.where(np.isinf(wide), np.sign(wide) * 65504, wide)


def _is_near(want: Any, got: Any, others: list[Any]) -> bool:
    """Return whether the difference between a result and the expected one is allowed.

    Floats that are NaN or infinite in either result are not compared.
    Args:
        want: The expected result.
        got: The result.
        others: The results of `Original.perturbed`, which determine the allowed difference.
    """
    if isinstance(want, list):
        alike = [o for o in others if len(o) == len(want)]
        if len(got) != len(want):
            return len(alike) < len(others)
        pairs = enumerate(zip(want, got, strict=True))
        return all(_is_near(*pair, [o[k] for o in alike]) for k, pair in pairs)
    alike = [o for o in others if o.shape == want.shape]
    if got.shape != want.shape:
        return len(alike) < len(others)
    if want.dtype.kind not in "fV":
        return bool(((got == want) | np.any([o != want for o in alike], axis=0)).all())
    with np.errstate(all="ignore"):
        left, right, *alike = (a.astype(np.float64) for a in (want, got, *alike))
        finite = np.isfinite(left) & np.isfinite(right)
        moved = [np.abs(o - left)[finite & np.isfinite(o)].max(initial=0.0) for o in alike]
        allowed = max([*moved, TOLERANCE * float(np.abs(left[finite]).max(initial=1e-30))])
        return bool((np.abs(left - right)[finite] <= allowed).all())


def _perturbing(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model that multiplies values of the main graph by numbers near 1.

    The values are all inputs, initializers and results of nodes with the type float32 or float64.
    Each element has its own random factor. The names of the unchanged values end with `_EXACT`.
    """
    changed = copy.deepcopy(model)
    graph = changed.graph
    made = [name for node in graph.node for name in node.output if name]
    shown = copy.deepcopy(model)
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    floats = {o.name for o in Reference(shown).outputs if o.type in _FLOATS}
    floats |= {t.name for t in graph.initializer if t.data_type in _FLOATS.values()}
    floats |= {i.name for i in graph.input if i.type.tensor_type.elem_type in _FLOATS.values()}
    for value in (*graph.input, *graph.initializer):
        if value.name in floats:
            value.name += _EXACT
    for node in graph.node:
        node.output[:] = [name + _EXACT * (name in floats) for name in node.output]
    for name in sorted(floats):
        factor = {"low": 1 - TOLERANCE, "high": 1 + TOLERANCE}
        graph.node.append(
            helper.make_node("RandomUniformLike", [name + _EXACT], [f"{name}_factor_"], **factor)
        )
        graph.node.append(helper.make_node("Mul", [name + _EXACT, f"{name}_factor_"], [name]))
    return changed


def _interface(before: onnx.ModelProto, after: onnx.ModelProto) -> str:
    for what in ("input", "output"):
        left = getattr(before.graph, what)
        right = getattr(after.graph, what)
        if [v.name for v in left] != [v.name for v in right]:
            return f"{what}s {[v.name for v in left]} became {[v.name for v in right]}"
        for old, new in zip(left, right, strict=True):
            if _bare(old.type) != _bare(new.type):
                return f"{what} {old.name} has another type"
    return ""


def _bare(type_: onnx.TypeProto) -> bytes:
    bare = copy.deepcopy(type_)
    inner = bare
    while (kind := inner.WhichOneof("value")) in ("sequence_type", "optional_type"):
        inner = getattr(inner, kind).elem_type
    if inner.HasField("tensor_type"):
        inner.tensor_type.ClearField("shape")
    return bare.SerializeToString()


def _merged(original: Original, expected: list[Any], found: list[Any]) -> str:
    """Return a text about random outputs that became zero or equal, or an empty string."""
    drawn = [
        (name, want, got)
        for name, want, got in zip(original.names, expected, found, strict=True)
        if name in original.random
        and isinstance(want, np.ndarray)
        and isinstance(got, np.ndarray)
        and want.dtype.kind == "f"
        and len(np.unique(want)) > 4  # outputs with fewer numbers may be equal by chance
    ]
    for k, (name, want, got) in enumerate(drawn):
        if np.count_nonzero(want) and not np.count_nonzero(got):
            return f"{name} is zero"
        for other, other_expected, other_got in drawn[:k]:
            if same_bits(got, other_got) and not same_bits(want, other_expected):
                return f"{other} and {name}"
    return ""


def ops_of(model: onnx.ModelProto) -> Counter[str]:
    """Count the nodes of a model by op, including those of subgraphs and functions."""
    counts = count_nodes(ir.from_proto(model))
    return Counter({name.replace("::", "."): count for name, count in counts.items()})


def _sizes(model: onnx.ModelProto, feed: Feeds) -> dict[str, int]:
    """Return the size in a feed of each symbolic dim of the model's tensor inputs."""
    return {
        dim.dim_param: size
        for value in model.graph.input
        if value.name in feed and value.type.HasField("tensor_type")
        for dim, size in zip(
            value.type.tensor_type.shape.dim, np.shape(feed[value.name]), strict=False
        )
        if dim.dim_param
    }


def _is_refused(original: Original, fixed: bool) -> bool:
    """Return whether onnxruntime rejects the original, so that the refusal is not a failure.
    onnxruntime may reject the original if onnxruntime's graph optimizations fold its constants.
    With ``fixed``, the sizes of the first feed replace symbolic dims, which onnxruntime may also
    reject. In both cases, onnxruntime's shape inference contradicts onnxruntime's kernels.
    """
    model = original.model
    if fixed:
        model = ir.to_proto(with_sizes(model, Options(dims=original.dims)))
    try:
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        if fixed:
            Reference(model)
    except Exception:  # onnxruntime raises many classes
        return True
    return False


def _gist(error: BaseException) -> str:
    """Return the end of an error's message without names, numbers, paths and parentheses."""
    return re.sub(r"\([^)]*\)|'[^']*'|\"[^\"]*\"|\d+|/\S+", "", one_line(error))[-60:]
