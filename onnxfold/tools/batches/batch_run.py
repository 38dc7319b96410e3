"""Run a batch: find the models, distribute them to workers, and collect the results."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnxfold.api.options import CheckedOptionArguments, Options, options_of
from onnxfold.api.signatures import Positive, Progress, checked
from onnxfold.api.targets import target_of
from onnxfold.ir.storage import PathLike
from onnxfold.passes import create
from onnxfold.support import isolated
from onnxfold.support.errors import MissingFileError, OnnxFoldError, UsageError
from onnxfold.support.system import available_memory, processors
from onnxfold.support.tables import bytes_text
from onnxfold.tools.batches.model_files import find, is_url
from onnxfold.tools.batches.outcome import Batch, Journal, Outcome
from onnxfold.tools.batches.task import Task, lost_outcome, run_task

if TYPE_CHECKING:
    from typing_extensions import Unpack

_JOURNAL = "onnxfold-batch.jsonl"
# The progress bar assumes that the time of a model is proportional to the bytes of its file plus
# this number.
_FIXED_BYTES = 1 << 20

# The dask resource of workers that declare their memory with ``--resources memory=...``.
_RESOURCE = "memory"
# The limit in bytes for plans on a cluster, so that no plan fails for lack of memory.
_NO_LIMIT = 1 << 62


@checked
def batch(
    sources: PathLike | Sequence[PathLike],
    output: PathLike,
    /,
    *,
    workers: Positive | None = None,
    executor: Executor | None = None,
    scheduler: str | None = None,
    memory: int | None = None,
    timeout: float | None = None,
    only_plan: bool = False,
    journal: PathLike | None = None,
    progress: Progress | None = None,
    **options: Unpack[CheckedOptionArguments],
) -> Batch:
    """Optimize many models, several at a time. A failed model does not stop the batch.

    A model is skipped if an earlier batch with the same options has written its result, or if the
    model would fail again. The journal records both.

    Args:
        sources: Files, folders and patterns with ``*``, ``?`` and ``**``, or URLs for fsspec.
        output: The folder of the results, or its URL. Each result keeps the path that its model has
            below the folder or pattern. Local files in ``output`` that a local folder or pattern
            matches are not sources.
        workers: Number of models at a time, by default the number of processors. Ignored with
            ``executor`` or ``scheduler``.
        executor: An executor with the interface of ``concurrent.futures``, which runs the models
            instead of workers on this machine.
        scheduler: Address of the scheduler of a dask cluster, which runs the models instead of
            workers on this machine.
        memory: Bytes for all models in progress in one process, by default the free memory, or the
            memory limit of a dask worker. A model waits until the memory that `onnxfold.plan`
            predicts for it is free. A model that requires more than the limit fails.
        timeout: Time limit in seconds for the plan of a model, and for its optimization. None for
            no limit.
        only_plan: Only predict the memory of each model, and write nothing.
        journal: The file of results with one JSON document per line, by default
            ``onnxfold-batch.jsonl`` in ``output``. Required if ``output`` is a URL.
        progress: Called after each model with the stage ``"models"``, the work done and the total
            work.
        options: Options of `onnxfold.optimize_file`, the same for all models. Rules are files, and
            feeds are a file or a folder.

    Returns:
        The outcomes of all models.

    Raises:
        UsageError: No model matches a source, or an option is invalid. No model was optimized.
        MissingFileError: A file that an option names does not exist. No model was optimized.
        OnnxFoldError: A URL or the scheduler cannot be reached, or the journal cannot be written.
    """
    start = time.perf_counter()
    parsed = options_of(options)
    json_options = _as_json(parsed)
    _check_names(parsed)
    if executor is not None and scheduler is not None:
        raise UsageError("give either an executor or a scheduler, not both")
    output = os.fspath(output)
    if journal is None and is_url(output):
        raise UsageError("a journal must be given if the output is a URL")
    patterns = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not patterns:
        raise UsageError("sources is empty: give at least one model")
    models = find(patterns, output)
    records = Journal(os.fspath(journal or os.path.join(output, _JOURNAL)))
    tasks = [
        Task(
            source=model.source,
            target=model.target,
            options=json_options,
            only_plan=only_plan,
            seconds=timeout,
            limit=memory,
            previous=records.previous.get(model.target),
        )
        # Large models first, so that no worker begins a large model at the end.
        for model in sorted(models, key=lambda m: m.nbytes, reverse=True)
    ]
    outcomes: dict[str, Outcome] = {}
    costs = {m.source: m.nbytes + _FIXED_BYTES for m in models}
    with closing(_outcomes(tasks, workers or processors(), executor, scheduler)) as finished:
        for outcome in finished:
            outcomes[outcome.source] = outcome
            is_recorded = outcome == records.previous.get(outcome.target)
            if not only_plan and outcome.status != "unchanged" and not is_recorded:
                records.write(outcome)
            if progress is not None:
                progress("models", sum(map(costs.__getitem__, outcomes)), sum(costs.values()))
    seconds = time.perf_counter() - start
    path = None if only_plan else records.path
    return Batch([outcomes[m.source] for m in models], seconds, path)


def _check_names(options: Options) -> None:
    """Raise an error for an unknown rule or pass now, before it causes each model to fail."""
    passes = list(options.passes or ())
    if options.enable or options.disable or options.rules:
        passes.insert(0, "simplify")
    for name in passes:
        create(name, options)


def _outcomes(
    tasks: Sequence[Task], workers: int, executor: Executor | None, scheduler: str | None
) -> Generator[Outcome, None, None]:
    if scheduler is not None:
        yield from _on_cluster(tasks, scheduler)
    elif executor is not None:
        yield from _on_executor(tasks, executor)
    else:
        free = available_memory()
        tasks = [replace(t, limit=free if t.limit is None else t.limit) for t in tasks]
        with isolated.workers(workers) as executor:
            yield from _on_executor(tasks, executor)


def _on_executor(tasks: Sequence[Task], executor: Executor) -> Iterator[Outcome]:
    futures: dict[Future[Outcome], Task] = {executor.submit(run_task, task): task for task in tasks}
    for future in as_completed(futures):
        error = future.exception()
        yield future.result() if error is None else lost_outcome(futures[future], error)


_FILE_OPTIONS = ("rules", "feeds", "ops", "custom_ops")
"""Options whose values are paths of files."""


def _as_json(options: Options) -> dict[str, Any]:
    """Return the JSON-ready options for other processes, with absolute paths.

    Raises:
        UsageError: Rules, feeds or ops are objects in memory instead of files, or the target is
            not the target of an installed package.
        MissingFileError: A file of rules, feeds or ops does not exist.
    """
    feeds: Sequence[Any] = [] if options.feeds is None else [options.feeds]
    values = {**vars(options), "feeds": feeds}
    if options.target is not None:
        if options.target != target_of(options.target.name):
            raise UsageError(f"the target {options.target} of a batch must be installed")
        values["target"] = options.target.name
    for name in _FILE_OPTIONS:
        try:
            values[name] = [os.path.abspath(path) for path in values[name]]
        except TypeError:
            raise UsageError(f"{name} of a batch must be files") from None
        for path in values[name]:
            if not os.path.exists(path):
                raise MissingFileError(file=path)
    values["feeds"] = next(iter(values["feeds"]), None)
    text = json.dumps(values, default=lambda v: dict(v) if isinstance(v, Mapping) else [*v])
    return dict(json.loads(text))


def _on_cluster(tasks: Sequence[Task], address: str) -> Iterator[Outcome]:
    """Optimize models on the workers of a dask cluster.

    Each model is planned first, and then sent to a worker with enough memory. If workers declare
    the resource "memory", dask limits the total memory of the models on each of them. Otherwise,
    models wait on their worker until enough memory is free.

    Raises:
        UsageError: dask is not installed.
        OnnxFoldError: The scheduler cannot be reached.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise UsageError("a scheduler requires dask: pip install 'onnxfold[dask]'") from None
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise OnnxFoldError(f"there is no dask scheduler at {address}: {error}") from error
    with client:
        # A worker can be selected only when the memory of the model is known.
        plans = [replace(task, only_plan=True, limit=_NO_LIMIT) for task in tasks]
        futures = dict(zip(client.map(run_task, plans, pure=False), tasks, strict=True))
        finished = as_completed(futures)
        for future in finished:
            task = futures.pop(future)
            failure = future.exception()
            outcome = future.result() if failure is None else lost_outcome(task, failure)
            if outcome.status != "planned" or task.only_plan:
                yield outcome
                continue
            requirements = _requirements(outcome.memory or 0, client)
            if isinstance(requirements, str):
                yield replace(outcome, status="failed", reason=f"{task.source}: {requirements}")
                continue
            optimized = client.submit(_run_on_worker, task, outcome, pure=False, **requirements)
            futures[optimized] = task
            finished.add(optimized)


def _requirements(memory: int, client: Any) -> dict[str, Any] | str:
    """Return arguments of dask's ``submit`` that select workers with enough memory.

    If no worker has enough memory, return a text with the reason.

    Args:
        memory: The predicted memory of the model in bytes.
        client: The client of the cluster.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    resources = {name: w["resources"].get(_RESOURCE) for name, w in workers.items()}
    declared = {name: nbytes for name, nbytes in resources.items() if nbytes is not None}
    limits = declared or {name: w["memory_limit"] or float("inf") for name, w in workers.items()}
    suitable = [name for name, limit in limits.items() if limit >= memory]
    if not suitable:
        largest = bytes_text(int(max(limits.values(), default=0)))
        return f"the model takes {bytes_text(memory)} of memory, but no worker has over {largest}"
    return {"resources": {_RESOURCE: memory}} if declared else {"workers": suitable}


def _run_on_worker(task: Task, planned: Outcome) -> Outcome:
    from distributed import get_worker

    limit = get_worker().memory_manager.memory_limit if task.limit is None else task.limit
    return run_task(replace(task, limit=limit), planned)
