"""Run a batch on a cluster of dask.distributed, which places models and repeats lost ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from onnxfold.batches.outcome import Outcome
from onnxfold.batches.task import Task, lost, run_task
from onnxfold.errors import OnnxFoldError, UsageError
from onnxfold.report.console import bytes_text

# Workers started with ``--resources memory=...`` declare their memory.
_RESOURCE = "memory"
_ANY = 1 << 62


def on_cluster(tasks: Sequence[Task], address: str) -> Iterator[Outcome]:
    """Optimize models on the workers of a cluster.

    Each model is planned first, and then sent to a worker that has the memory. Where workers
    declare the resource "memory", dask counts it; otherwise each worker lets models wait until it
    has the memory for one more.

    Raises:
        UsageError: dask.distributed is not installed.
        OnnxFoldError: There is no such cluster.
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
        plans = [replace(task, only_plan=True, limit=_ANY) for task in tasks]
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
            following = client.submit(_run, task, outcome, pure=False, **place)
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


def _run(task: Task, planned: Outcome) -> Outcome:
    from distributed import get_worker

    limit = get_worker().memory_manager.memory_limit
    return run_task(replace(task, limit=task.limit or limit), planned)
