"""Plan and optimize one model of a batch, on this machine or another one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from onnxfold.api.options import options_of
from onnxfold.ir.storage.load import external_files
from onnxfold.support import forks, isolated
from onnxfold.support.errors import CheckFailedError, ModelError, OnnxFoldError, spelled, spellings
from onnxfold.support.file_contents import hash_file
from onnxfold.support.files import scratch_folder
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.system import available_memory
from onnxfold.support.tables import bytes_text
from onnxfold.tools.batches import model_files
from onnxfold.tools.batches.outcome import Outcome

# Exit codes of a process that received SIGKILL or SIGTERM from a user, or from the system for lack
# of memory. The model may not be the cause, so the task repeats it once in another process.
_KILLED = (-9, -15)

# If the predicted memory of a model is at least this number of bytes, no other model uses the same
# process. The process may not return all memory to the system.
_LARGE = 1 << 30


@dataclass(frozen=True)
class Task:
    """A model to optimize, with the options. A task can be pickled and sent to another machine.

    Attributes:
        source: Path or URL of the model.
        target: Path or URL of the result.
        options: JSON-ready options of the optimization and its check.
        only_plan: Only predict the memory.
        seconds: Limit of wall time in seconds for the plan, and for the optimization. None for no
            limit.
        limit: Bytes of memory for all models in progress in one process, or None for the free
            memory.
        previous: The outcome of the same target in an earlier batch, or None.
        spellings: The spellings of options in messages, see `onnxfold.support.errors.option`.
    """

    source: str
    target: str
    options: Mapping[str, Any]
    only_plan: bool = False
    seconds: float | None = None
    limit: int | None = None
    previous: Outcome | None = None
    spellings: Mapping[str, str] = field(default_factory=spellings)


def run_task(task: Task, planned: Outcome | None = None) -> Outcome:
    """Plan a model, and optimize it as soon as enough memory is free.

    Args:
        task: The model and the options.
        planned: The outcome of the same task with ``only_plan``. None to plan the model first.

    Returns:
        The outcome. Its status is "failed" if an error occurs. If the outcome of an earlier batch
        is still valid, the model is neither planned nor optimized.
    """
    outcome = planned or Outcome(task.source, task.target, "planned")
    try:
        with contextlib.ExitStack() as stack:
            source = task.source
            if model_files.is_url(source):
                folder = stack.enter_context(scratch_folder("batch"))
                source = model_files.fetch(source, folder)
            if planned is None:
                outcome = _planned(task, outcome, source)
            if outcome.status != "planned" or task.only_plan:
                return outcome
            target = task.target
            if model_files.is_url(target):
                folder = stack.enter_context(scratch_folder("batch"))
                target = os.path.join(folder, task.target.rpartition("/")[2])
            else:
                os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
            share = THIS_PROCESS.shared(_OwnShare).get(_MemoryShare)
            stack.enter_context(share.reserve(outcome.memory or 0, _limit(task)))
            start = time.perf_counter()
            optimized = _with_figures(task, outcome, source, target)
            if optimized.status == "failed":
                return optimized
            if model_files.is_url(task.target):
                model_files.store(target, task.target)
            seconds = round(time.perf_counter() - start, 6)
            return replace(optimized, status="done", written=_content(task.target), seconds=seconds)
    except OnnxFoldError as error:
        reason = str(error)
    except isolated.Failure as error:
        reason = f"{task.source}: {error}"
    except OSError as error:
        parts = (task.source, error.filename, error.strerror or str(error))
        reason = ": ".join(dict.fromkeys(filter(None, parts)))
    return replace(outcome, status="failed", reason=reason)


def _planned(task: Task, outcome: Outcome, source: str) -> Outcome:
    outcome = replace(outcome, key=_key(task, source))
    if task.previous is not None and _is_same(task.previous, outcome):
        if task.previous.is_final:
            return task.previous
        return replace(task.previous, source=task.source, status="unchanged", seconds=0.0)
    outcome = _with_figures(task, outcome, source, None)
    limit = _limit(task)
    if outcome.memory is not None and outcome.memory > limit:
        required = bytes_text(outcome.memory)
        available = bytes_text(limit)
        needs = f"the model takes {required} of memory, but a worker has {available}"
        return replace(outcome, status="failed", reason=f"{task.source}: {needs}")
    return outcome


def _with_figures(task: Task, outcome: Outcome, source: str, target: str | None) -> Outcome:
    """Return the outcome with the figures of the optimization, or of a plan if target is None.

    Raises:
        isolated.Failure: The process exceeds the time limit, ends, or is killed twice.
    """
    request = {"source": source, "target": target, "options": task.options}
    request["spellings"] = dict(task.spellings)
    function = f"{__name__}:plan_or_optimize"
    keep = target is None or (outcome.memory or 0) < _LARGE
    try:
        figures, _ = isolated.run(function, request, seconds=task.seconds, keep=keep)
    except isolated.Failure as failure:
        if failure.code not in _KILLED:
            raise
        figures, _ = isolated.run(function, request, seconds=task.seconds, keep=keep)
    return replace(outcome, **{**figures, "warnings": tuple(figures.get("warnings", ()))})


def plan_or_optimize(
    request: Mapping[str, Any], arrays: object
) -> tuple[dict[str, Any], list[Any]]:
    """Plan or optimize a model in this process, which `isolated` has started.

    Args:
        request: "source", "target" (None for a plan), "options" and "spellings".
        arrays: Not used.

    Returns:
        Fields of an `Outcome`, and no arrays. The status is "failed" if an error occurs.
    """
    source = request["source"]
    target = request["target"]
    options = request["options"]
    try:
        with spelled(request["spellings"]):
            from onnxfold.api.optimize import optimize_file, plan

            if target is None:
                passes = options["passes"]
                if passes is not None and "constant-propagation" not in passes:
                    # A plan requires constant propagation. The optimization without this pass takes
                    # less memory than the plan predicts.
                    options = {**options, "passes": [*passes, "constant-propagation"]}
                planned = plan(source, **options)
                memory = planned.prediction.peak_bytes
                return {"nodes_before": planned.nodes, "memory": memory}, []
            report = optimize_file(source, target, **options)
            return {
                "nodes_before": sum(report.nodes_before.values()),
                "nodes_after": sum(report.nodes_after.values()),
                "bytes_before": report.bytes_before,
                "bytes_after": report.bytes_after,
                "peak": report.peak_rss_bytes,
                "warnings": report.warnings,
            }, []
    except OnnxFoldError as error:
        differs = isinstance(error, CheckFailedError)
        is_final = differs or isinstance(error, ModelError)
        figures = {"differs": differs, "is_final": is_final}
        return {"status": "failed", "reason": str(error), **figures}, []
    except Exception as error:  # a bug fails this model only, not the batch
        reason = f"bug in onnxfold: {type(error).__name__}: {error}"
        return {"status": "failed", "reason": reason}, []


def _limit(task: Task) -> int:
    return available_memory() if task.limit is None else task.limit


def lost_outcome(task: Task, error: BaseException) -> Outcome:
    """Return the outcome of a model whose worker raised an exception or ended early."""
    reason = f"{task.source}: the worker was lost: {type(error).__name__}: {error}"
    return Outcome(task.source, task.target, "failed", reason)


def _is_same(previous: Outcome, outcome: Outcome) -> bool:
    """Return whether an earlier outcome of a target is still valid.

    The key must be the same. The result must be unchanged, or the failure must be final.
    """
    if previous.key != outcome.key:
        return False
    if previous.status == "failed":
        return previous.is_final and previous.source == outcome.source
    try:
        return previous.written == _content(outcome.target)
    except (OnnxFoldError, OSError):  # the result was removed or damaged
        return False


def _key(task: Task, source: str) -> str:
    """Return a hash of the model, the options, and the version of onnxfold.

    Files of rules, feeds and ops are represented by hashes of their content.
    """
    options = {**task.options, "check": options_of(task.options).seeds}
    for name in ("rules", "ops", "custom_ops"):
        options[name] = [hash_file(Path(path)) for path in options[name]]
    if options["feeds"] is not None:
        path = Path(options["feeds"])  # if a folder has no feeds, the optimization fails
        files = sorted(path.rglob("input_*.pb")) if path.is_dir() else [path]
        options["feeds"] = [hash_file(file) for file in files]
    document = [_content(source), options, version("onnxfold")]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _content(path: str) -> str:
    """Return a hash of a model and its external data.

    For a URL, return fsspec's version of the model file, which does not include external data.
    """
    if model_files.is_url(path):
        return model_files.version_of(path)
    digests = [hash_file(Path(file)) for file in (path, *external_files(path))]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


class _MemoryShare:
    """Memory that threads reserve one after another.

    While one thread waits for memory, no other thread can reserve memory. Otherwise small models
    would overtake a large one.
    """

    def __init__(self) -> None:
        self._queue = forks.Lock()
        self._released = threading.Condition()
        self._reserved = 0

    @contextlib.contextmanager
    def reserve(self, nbytes: int, limit: int) -> Iterator[None]:
        """Reserve bytes in this context, as soon as the sum of all reservations is within a limit.

        A reservation that exceeds the limit waits until there is no other reservation.

        Args:
            nbytes: The bytes to reserve.
            limit: The limit of the sum in bytes.
        """
        with self._queue, self._released:
            self._released.wait_for(lambda: self._reserved + nbytes <= max(limit, nbytes))
            self._reserved += nbytes
        try:
            yield
        finally:
            with self._released:
                self._reserved -= nbytes
                self._released.notify()


class _OwnShare(forks.ProcessLocal[_MemoryShare]):
    """The memory that threads of this process have reserved. A forked process has reserved none."""
