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
from onnxfold.ir.storage import PathLike
from onnxfold.passes import create
from onnxfold.support import isolated
from onnxfold.support.errors import MissingFileError, OnnxFoldError, UsageError
from onnxfold.support.system import available_memory, processors
from onnxfold.support.tables import bytes_text
from onnxfold.tools.batches.model_files import find, is_url
from onnxfold.tools.batches.outcome import Batch, Journal, Outcome
from onnxfold.tools.batches.task import Task, lost, run_task

if TYPE_CHECKING:
    from typing_extensions import Unpack

_JOURNAL = "onnxfold-batch.jsonl"
# The fixed cost of a model in bytes of its file, for the progress bar only.
_BYTES_OF_A_MODEL = 1 << 20

# Workers started with ``--resources memory=...`` declare their memory.
_RESOURCE = "memory"


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

    Models finished by an earlier batch with the same options are skipped.

    Args:
        sources: Files, folders and patterns with ``*``, ``?`` and ``**``; or URLs, with fsspec.
        output: A folder, or its URL, for the results. They keep their paths below the folder or
            pattern; files in it are never sources.
        workers: Number of models at a time on this machine; None for the number of processors.
        executor: Runs the models instead: an object with the interface of ``concurrent.futures``.
        scheduler: Address of the scheduler of a dask cluster, which runs the models instead.
        memory: Bytes for all models in progress in one process; None for the free memory. A model
            waits until the memory that `onnxfold.plan` predicts for it is free.
        timeout: Time limit for each model in seconds; None for no limit.
        only_plan: Only predict the memory of each model; write nothing.
        journal: The file of results, one JSON document per line; None for one in ``output``.
        progress: Called with a stage, the work done and the total of the stage.
        options: As for `onnxfold.optimize_file`; rules are files, and feeds are a file or folder,
            the same for each model.

    Raises:
        UsageError: There is no such model, or an option is invalid. Nothing was done.
    """
    began = time.perf_counter()
    chosen = options_of(options)
    sent = _as_json(chosen)
    names_rules = chosen.enable or chosen.disable or chosen.rules
    for name in (*["simplify"] * bool(names_rules), *(chosen.passes or ())):
        create(name, chosen)  # before each model fails by a name
    if executor is not None and scheduler is not None:
        raise UsageError("an executor and a scheduler contradict each other")
    output = os.fspath(output)
    if journal is None and is_url(output):
        raise UsageError("a journal must be given where the results go to a URL")
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not given:
        raise UsageError("sources is empty: give at least one model")
    models = find(given, output)
    kept = Journal(os.fspath(journal or os.path.join(output, _JOURNAL)))
    tasks = [
        Task(
            model.source,
            model.target,
            sent,
            only_plan,
            timeout,
            memory,
            before=kept.before.get(model.target),
        )
        # the largest first, so that no worker starts a large model last
        for model in sorted(models, key=lambda m: m.nbytes, reverse=True)
    ]
    outcomes: dict[str, Outcome] = {}
    costs = {m.source: m.nbytes + _BYTES_OF_A_MODEL for m in models}
    with closing(_outcomes(tasks, workers or processors(), executor, scheduler)) as done:
        for outcome in done:
            outcomes[outcome.source] = outcome
            is_known = outcome.status == "unchanged" or outcome == kept.before.get(outcome.target)
            if not only_plan and not is_known:
                kept.write(outcome)
            if progress is not None:
                progress("models", sum(map(costs.__getitem__, outcomes)), sum(costs.values()))
    seconds = time.perf_counter() - began
    written = None if only_plan else kept.path
    return Batch([outcomes[m.source] for m in models], seconds, written)


def _outcomes(
    tasks: Sequence[Task], workers: int, executor: Executor | None, scheduler: str | None
) -> Generator[Outcome, None, None]:
    if scheduler is not None:
        yield from _on_cluster(tasks, scheduler)
    elif executor is not None:
        yield from _by(executor, tasks)
    else:
        free = available_memory()
        tasks = [replace(t, limit=free if t.limit is None else t.limit) for t in tasks]
        with isolated.workers(workers) as executor:
            yield from _by(executor, tasks)


def _by(executor: Executor, tasks: Sequence[Task]) -> Iterator[Outcome]:
    futures: dict[Future[Outcome], Task] = {executor.submit(run_task, task): task for task in tasks}
    for future in as_completed(futures):
        error = future.exception()
        yield future.result() if error is None else lost(futures[future], error)


def _as_json(options: Options) -> dict[str, Any]:
    """Return the options as sent to other processes; a UsageError says that one cannot be sent."""
    feeds: Sequence[Any] = [] if options.feeds is None else [options.feeds]
    sent = {**vars(options), "feeds": feeds}
    for name in ("rules", "feeds", "custom_ops"):
        try:
            sent[name] = [os.path.abspath(path) for path in sent[name]]
        except TypeError:
            raise UsageError(f"{name} of a batch are files: other processes read them") from None
        for path in sent[name]:
            if not os.path.exists(path):
                raise MissingFileError(file=path)
    sent["feeds"] = next(iter(sent["feeds"]), None)
    text = json.dumps(sent, default=lambda v: dict(v) if isinstance(v, Mapping) else [*v])
    return dict(json.loads(text))


def _on_cluster(tasks: Sequence[Task], address: str) -> Iterator[Outcome]:
    """Optimize models on the workers of a cluster; raise an OnnxFoldError if it cannot be reached.

    Each model is planned first, and then sent to a worker that has the memory. Where workers
    declare the resource "memory", dask counts it; otherwise each worker lets models wait until it
    has the memory for one more.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise UsageError("a scheduler needs dask: pip install 'onnxfold[dask]'") from None
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise OnnxFoldError(f"there is no dask scheduler at {address}: {error}") from error
    with client:
        # a worker is chosen when the memory of the model is known
        plans = [replace(task, only_plan=True, limit=1 << 62) for task in tasks]
        futures = dict(zip(client.map(run_task, plans, pure=False), tasks, strict=True))
        finished = as_completed(futures)
        for future in finished:
            task = futures.pop(future)
            failure = future.exception()
            outcome = future.result() if failure is None else lost(task, failure)
            if outcome.status != "planned" or task.only_plan:
                yield outcome
                continue
            place = _place_for(outcome.memory or 0, client)
            if isinstance(place, str):
                yield replace(outcome, status="failed", reason=f"{task.source}: {place}")
                continue
            following = client.submit(_run_on_worker, task, outcome, pure=False, **place)
            futures[following] = task
            finished.add(following)


def _place_for(memory: int, client: Any) -> dict[str, Any] | str:
    """Return the workers with enough memory for a model, or the reason why no worker has it."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    declared = {name: w["resources"].get(_RESOURCE) for name, w in workers.items()}
    given = {name: n for name, n in declared.items() if n is not None}
    limits = given or {name: w["memory_limit"] or float("inf") for name, w in workers.items()}
    large = [name for name, limit in limits.items() if limit >= memory]
    if not large:
        most = bytes_text(int(max(limits.values(), default=0)))
        return f"it takes {bytes_text(memory)} of memory, and no worker has more than {most}"
    return {"resources": {_RESOURCE: memory}} if given else {"workers": large}


def _run_on_worker(task: Task, planned: Outcome) -> Outcome:
    from distributed import get_worker

    limit = get_worker().memory_manager.memory_limit if task.limit is None else task.limit
    return run_task(replace(task, limit=limit), planned)
