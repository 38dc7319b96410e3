"""Compare kernels of onnx's backend node cases with onnxruntime on adversarial values.

``python tests/conformance/kernel_cases.py --backend iree`` compiles every case that the backend
supports, and prints the result of each case and the totals. Inputs that can only be indices or
sizes become initializers. All other inputs are runtime constants. Batches of cases run in child
processes. A case that ends its process is counted as a crash.

A kernel is correct if it returns the results of onnxruntime, within the tolerance of ``error_of``.
onnxruntime runs with and without ``session.set_denormal_as_zero``, and the kernel may agree with
either result. The reason is that a kernel may flush subnormal numbers to zero, and that the product
of zero and an infinity is NaN.
"""

import argparse
import json
import math
import multiprocessing
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx

HERE = Path(__file__).parent
SKIPPED = "skipped"
AT_A_TIME = 20
# Maximum number of elements of all inputs in a call with other sizes than those of the case. Seven
# axes of size 17 would exceed the memory.
MOST_ELEMENTS = 1 << 20


def models_of(case: Any) -> Iterator[tuple[str, onnx.ModelProto, dict[str, np.ndarray]]]:
    """Yield the kind, the model and the inputs of a case, first with symbolic sizes.

    The second model has the sizes of the case. Nothing is yielded for a case with strings, or with
    values that are not tensors.
    """
    from backend_cases import values_of

    infos = case.model.graph.input
    values = values_of(case.data_sets[0][0])
    kinds = (*infos, *case.model.graph.output)
    if any(not info.type.HasField("tensor_type") for info in kinds):
        return
    if any(not isinstance(v, np.ndarray | np.generic) for v in values):
        return
    given = {i.name: np.asarray(v) for i, v in zip(infos, values, strict=False) if i.name}
    if any(i.type.tensor_type.elem_type == onnx.TensorProto.STRING for i in kinds):
        return
    places = set(_places(case.model)) & given.keys()
    for kind in ("symbolic", "as it is"):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        graph = model.graph
        for info in list(graph.input):
            if info.name in places or info.name not in given:
                graph.input.remove(info)
            elif kind == "symbolic":
                for k, dim in enumerate(info.type.tensor_type.shape.dim):
                    dim.dim_param = f"{info.name}_{k}"
        for name in sorted(places):
            graph.initializer.append(onnx.numpy_helper.from_array(given[name], name))
        if kind == "symbolic":
            del graph.value_info[:]
            for info in graph.output:
                info.type.tensor_type.ClearField("shape")
        yield kind, model, {n: a for n, a in given.items() if n not in places}


def _places(model: onnx.ModelProto) -> Iterator[str]:
    """Yield the names of operands that are indices or sizes: the op allows only int32 and int64."""
    opsets = {o.domain: o.version for o in model.opset_import}
    for node in model.graph.node:
        try:
            schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue
        types = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
        for k, name in enumerate(node.input):
            formal = schema.inputs[min(k, len(schema.inputs) - 1)]
            if types.get(formal.type_str, {formal.type_str}) <= {"tensor(int32)", "tensor(int64)"}:
                yield name


def _floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[Any]:
    normal = rng.standard_normal(shape)
    yield "numbers around 0", normal
    yield "hundreds", rng.uniform(100, 1000, shape) * rng.choice([-1, 1], shape)
    yield "negative", -rng.uniform(1, 30, shape)
    yield "positive", rng.uniform(0.01, 100, shape)
    yield "one NaN", _with_one(rng, normal, np.nan)
    yield "one infinity", _with_one(rng, normal, np.inf)
    yield "one negative infinity", _with_one(rng, normal, -np.inf)
    yield "NaN only", np.full(shape, np.nan)
    yield "infinities", rng.choice([np.inf, -np.inf, 0.0, -0.0, 1.0, np.nan], shape)
    yield "zeros", rng.choice([0.0, -0.0], shape)
    yield "ties", rng.choice([-1.5, -0.5, 0.5, 1.5, 2.5], shape)
    yield "equal", np.full(shape, 3.0)
    yield "tiny", normal * 1e-30
    yield "large", normal * (1e3 if dtype.itemsize == 2 else 1e15)


def _integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[Any]:
    limits = np.iinfo(dtype)
    low = int(limits.min)
    high = int(limits.max)
    yield "all", rng.integers(low, high, shape, dtype, endpoint=True)
    yield "extremes", rng.choice(np.array([low, high, 0, 1, max(low, -1)], object), shape)
    yield "zeros", np.zeros(shape)
    yield "ones", np.ones(shape)
    yield "ties", rng.integers(0, 3, shape)
    yield "small", rng.integers(max(low, -8), 8, shape)
    yield "hundreds", rng.integers(max(low, -1000), min(high, 1000), shape)


def _with_one(rng: np.random.Generator, array: Any, value: float) -> Any:
    array = np.array(array)
    if array.size:
        array.reshape(-1)[int(rng.integers(array.size))] = value
    return array


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, turn: int) -> Any:
    if dtype == np.bool_:
        return [rng.random(shape) < 0.5, np.zeros(shape, bool), np.ones(shape, bool)][turn % 3]
    make = _integers if dtype.kind in "iu" else _floats
    kinds = list(make(rng, shape, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(kinds[turn % len(kinds)][1]).astype(dtype).reshape(shape)


def feeds_of(given: dict[str, np.ndarray], symbolic: bool, seed: int) -> Iterator[dict]:
    """Yield the case's own inputs, adversarial values of the same sizes, and values of other sizes.

    Some of the other sizes are incompatible, so that the model should fail.
    """
    rng = np.random.default_rng(seed)
    yield given
    for turn in range(14):
        yield {n: _drawn(rng, a.shape, a.dtype, turn) for n, a in given.items()}
    for _ in range(6):  # an independent kind of values for each input
        turns = {n: int(rng.integers(14)) for n in given}
        yield {n: _drawn(rng, a.shape, a.dtype, turns[n]) for n, a in given.items()}
    sizes = sorted({d for a in given.values() for d in a.shape})
    others: list[dict[int, int]] = [dict.fromkeys(sizes, 1), dict.fromkeys(sizes, 0)]
    others.append({d: 17 + k if d > 1 else d for k, d in enumerate(sizes)})
    others.append({d: 17 if d > 1 else d for d in sizes})
    others += [
        {**dict(zip(sizes, sizes, strict=True)), d: new} for d in sizes for new in (0, 1, 17)
    ]
    for sizes_now in others:
        shapes = {n: tuple(sizes_now[d] for d in a.shape) for n, a in given.items()}
        if sum(map(math.prod, shapes.values())) <= MOST_ELEMENTS:
            yield {n: _drawn(rng, shapes[n], a.dtype, 0) for n, a in given.items()}
    for name, array in given.items():  # incompatible sizes
        for axis in range(array.ndim):
            shape = list(array.shape)
            shape[axis] += int(rng.choice([-1, 1, 5])) if shape[axis] else 1
            made = {n: _drawn(rng, a.shape, a.dtype, 0) for n, a in given.items()}
            yield {**made, name: _drawn(rng, tuple(shape), array.dtype, 0)}


def run_case(name: str, backend: str) -> dict[str, Any]:
    """Return the result of a case as a dictionary for JSON.

    The result has the name, the kind of model that was compiled or the reason why none was, the
    number of tried feeds, and the errors of the kernel ("wrong") and of the split ("split").
    """
    from backend_cases import cases
    from reference_session import reference_options, reference_session

    from onnxfold.runtime.sessions.cache import FoldCache
    from onnxfold.runtime.sessions.session import Session

    result: dict[str, Any] = {"name": name, "compiled": None, "reason": SKIPPED, "tried": 0}
    result.update(wrong=[], split=[])
    for kind, model, given in models_of(cases()[name]):
        if not given:
            continue
        try:
            reference = reference_session(model)
            reference.run(None, given)
        except Exception as error:  # onnxruntime raises many classes without a common base
            result["reason"] = f"onnxruntime: {' '.join(str(error).split())[:80]}"
            continue
        rest: Any = {"runtime_constants": list(given), "cache": FoldCache(max_bytes=0)}
        try:
            session = Session(model, reference_options(), backend=backend, **rest)
        except Exception as error:
            result["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
            result["wrong"].append(result["reason"])
            continue
        reasons = [p.reason for p in session.placements() if p.backend != backend]
        if reasons or not session.placements():
            result["reason"] = str(reasons[0] if reasons else "nothing is cached")[:200]
            continue
        result["compiled"] = kind
        result["reason"] = None
        for k, feeds in enumerate(feeds_of(given, kind == "symbolic", len(name))):
            result["tried"] += 1
            want = _outcome(reference, feeds)
            got = _outcome(session, feeds)
            raised = isinstance(got, str)
            expected = isinstance(want, str)
            if raised != expected:  # find out whether the kernel or the split is the cause
                plain = Session(model, reference_options(), backend="onnxruntime", **rest)
                of_kernel = isinstance(_outcome(plain, feeds), str) == expected
                side = "onnxruntime" if expected else "the kernel" if of_kernel else "the split"
                result["wrong" if of_kernel else "split"].append(
                    f"{k}: only {side} raises {want if expected else got}"
                )
            if raised or expected:
                continue
            if not (_is_right(got, want) or _is_right(got, _flushed(model, feeds))):
                result["wrong"].append(f"{k}: other values")
        break
    return result


def _outcome(session: Any, feeds: dict) -> Any:
    try:
        return session.run(None, feeds)
    except Exception as error:  # onnxruntime raises many classes without a common base
        return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"


def _is_right(got: Any, want: Any) -> bool:
    from onnxfold.runtime.backends.kernel_check import error_of

    for g, w in zip(map(np.asarray, got), map(np.asarray, want), strict=True):
        _, magnitude = error_of(g, w)
        # if terms cancel, the rounding error of the largest term remains
        if not error_of(g, w, atol=1e-6 * magnitude)[0].within:
            return False
    return True


def _flushed(model: onnx.ModelProto, feeds: dict) -> Any:
    """Return onnxruntime's results with subnormal numbers flushed to zero.

    The model runs in another process, because the first session of a process sets this mode for all
    sessions.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run_flushed, model.SerializeToString(), feeds).result()


def _run_flushed(content: bytes, feeds: dict) -> Any:
    import onnxruntime as ort
    from reference_session import reference_options

    options = reference_options()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_cases(names: list[str], backend: str) -> Iterator[dict[str, Any]]:
    """Run batches of cases in child processes, and yield the result of each case."""
    done = 0
    while done < len(names):
        batch = names[done : done + AT_A_TIME]
        command = [sys.executable, __file__, "--backend", backend, "--run", *batch]
        child = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in child.stdout.splitlines() if line.startswith("{")]
        yield from map(json.loads, lines)
        done += len(lines)
        if child.returncode and len(lines) < len(batch):
            crash = f"exit code {child.returncode}: {child.stderr[-300:]}"
            yield {"name": names[done], "compiled": "?", "tried": 0, "wrong": [], "crash": crash}
            done += 1


def summary(results: list[dict[str, Any]]) -> str:
    compiled = [r for r in results if r["compiled"]]
    kinds = Counter(r["compiled"] for r in compiled)
    return (
        f"{len(results)} cases, {len(compiled)} compiled ({dict(kinds)}), "
        f"{sum(r['tried'] for r in results)} values tried, "
        f"{sum(bool(r['wrong']) for r in results)} wrong, "
        f"{sum('crash' in r for r in results)} crashes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="iree")
    parser.add_argument("--run", nargs="*")
    arguments = parser.parse_args()
    from backend_cases import cases

    if arguments.run:
        for name in arguments.run:
            print(json.dumps(run_case(name, arguments.backend)), flush=True)
        return
    results = []
    for result in run_cases(sorted(cases()), arguments.backend):
        results.append(result)
        print(json.dumps(result), flush=True)
        if len(results) % 100 == 0:
            print(time.strftime("%H:%M:%S"), summary(results), file=sys.stderr, flush=True)
    print(summary(results))


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]
    main()
