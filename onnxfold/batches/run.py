"""Running a batch: which models there are, who works on them, and what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Union

from onnxfold import isolated
from onnxfold.batches.journal import Journal
from onnxfold.batches.models import find
from onnxfold.batches.outcome import Batch, Outcome
from onnxfold.batches.task import Task, lost, run_task
from onnxfold.errors import UsageError
from onnxfold.memory import available_memory, processors
from onnxfold.options import CheckedOptionArguments, Options, check_as_json, check_of, options_of
from onnxfold.urls import is_url

if TYPE_CHECKING:
    from typing_extensions import Unpack

_JOURNAL = "onnxfold-batch.jsonl"
# What a model costs whatever its size, in bytes of its file: for the progress only.
_BYTES_OF_A_MODEL = 1 << 20

PathLike = Union[str, "os.PathLike[str]"]
Progress = Callable[[str, int, int], None]


def batch(
    sources: PathLike | Sequence[PathLike],
    output: PathLike,
    /,
    *,
    workers: int | None = None,
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
    check, others = check_of(options)
    sent, sent_check = _as_json(options_of(others)), check_as_json(check)
    if executor is not None and scheduler is not None:
        raise UsageError("an executor and a scheduler contradict each other")
    output = os.fspath(output)
    if journal is None and is_url(output):
        raise UsageError("a journal must be given where the results go to a URL")
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    models = find(given, output)
    with ExitStack() as stack:
        kept = Journal(os.fspath(journal or os.path.join(output, _JOURNAL)))
        stack.callback(kept.close)
        tasks = [
            Task(
                model.source,
                model.target,
                sent,
                sent_check,
                only_plan,
                timeout,
                memory,
                kept.before.get(model.target),
            )
            # the largest first: no worker begins one when the others have nothing left to do
            for model in sorted(models, key=lambda m: m.nbytes, reverse=True)
        ]
        if scheduler is not None:
            from onnxfold.batches.cluster import on_cluster

            done = on_cluster(tasks, scheduler)
        elif executor is not None:
            done = _by(executor, tasks, run_task)
        else:
            done = _here(tasks, workers or processors(), stack)
        outcomes: dict[str, Outcome] = {}
        costs = {m.source: m.nbytes + _BYTES_OF_A_MODEL for m in models}
        for outcome in done:
            outcomes[outcome.source] = outcome
            is_known = outcome.status == "unchanged" or outcome == kept.before.get(outcome.target)
            if not only_plan and not is_known:
                kept.write(outcome)
            if progress is not None:
                progress("models", sum(map(costs.__getitem__, outcomes)), sum(costs.values()))
        seconds = time.perf_counter() - began
        journal = None if only_plan else kept.path
        return Batch([outcomes[m.source] for m in models], seconds, journal)


def _here(tasks: Sequence[Task], workers: int, stack: ExitStack) -> Iterator[Outcome]:
    """In processes of this machine, each with a thread here that waits for it."""
    limit = available_memory()
    executor = stack.enter_context(isolated.workers(workers))
    return _by(executor, [replace(t, limit=t.limit or limit) for t in tasks], run_task)


def _by(
    executor: Executor, tasks: Sequence[Task], work: Callable[[Task], Outcome]
) -> Iterator[Outcome]:
    futures: dict[Future[Outcome], Task] = {executor.submit(work, task): task for task in tasks}
    for future in as_completed(futures):
        error = future.exception()
        yield future.result() if error is None else lost(futures[future], error)


def _as_json(options: Options) -> dict[str, Any]:
    """Return the options as they are sent to another process.

    Raises:
        UsageError: One of them cannot be sent.
    """
    sent = {field.name: getattr(options, field.name) for field in fields(options)}
    try:
        paths = map(os.fspath, options.rules)  # type: ignore[arg-type]  # a TypeError otherwise
        sent["rules"] = [os.path.abspath(path) for path in paths]
    except TypeError:
        raise UsageError("the rules of a batch are files, for other processes read them") from None
    return sent
