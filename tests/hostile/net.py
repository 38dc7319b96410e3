"""Run the steps of `worker` in a child process on the files of the corpus and generated files."""

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.case_driver import Failure, Found, Worker, drive
from tests.hostile import hostile_graphs, seeds
from tests.hostile.byte_mutations import mutate

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
"""Files that failed once, and other files that every run must cover."""


def file_of(seed: int, number: int, *, all_ops: bool = True) -> tuple[bytes, str]:
    """Return the content of a file and a description.

    A negative number selects a file of the corpus. The other files are generated: a quarter of them
    are hostile graphs, and the rest are mutations of valid models. A few of the hostile graphs are
    mutated as well.

    Args:
        seed: Seed of the generated files.
        number: Number of the file.
        all_ops: Whether models of onnx are mutated as well, see `seeds.any_seed`.
    """
    if number < 0:
        return CORPUS[number].read_bytes(), CORPUS[number].name
    rng = random.Random(f"{seed}:{number}")
    if rng.random() >= 0.25:
        return mutate(rng, seeds.any_seed(rng, all_ops=all_ops))
    data, description = hostile_graphs.make(rng)
    if rng.random() < 0.1 and len(data) < 20000:
        data, change = mutate(rng, data)
        description += f"; {change}"
    return data, description


def run(
    seed: int,
    numbers: Sequence[int],
    *,
    all_ops: bool = True,
    keep: Path | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> Found:
    """Run the steps on files and return the failures by class.

    Args:
        seed: Seed of the generated files.
        numbers: Numbers of the files. Negative numbers select files of the corpus.
        all_ops: Whether onnx's test models are mutated as well.
        keep: Folder that receives one file for each class of failures, or None.
        show: Is called with a text for the first failure of each class, and with the progress.
    """

    def call(number: int) -> tuple[Any, ...]:
        data, description = file_of(seed, number, all_ops=all_ops)
        return "check_file", str(models), data, f"{number}: {description:.200}", number % 10 == 0

    def classify(number: int, failure: Failure) -> tuple[str, str]:
        key = f"{failure.variant}: {failure.kind} {failure.place}"
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            name = "".join(c if c.isalnum() else "_" for c in key)[:80]
            (keep / f"{name}.onnx").write_bytes(file_of(seed, number, all_ops=all_ops)[0])
        return key, ""

    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        models = Path(folder, "models")
        _create_paths(models, Path(folder))
        worker = Worker("tests.hostile.worker", cpu_seconds=10)
        # `seconds` limits the wall-clock time, because a process that sleeps uses no CPU time.
        return drive(worker, numbers, call, classify, seconds=60, show=show)


def _create_paths(models: Path, outside: Path) -> None:
    """Create the paths that external data refers to: files, links, a folder and a named pipe."""
    models.mkdir()
    (models / seeds.DATA_FILE).write_bytes(random.Random(0).randbytes(seeds.DATA_SIZE))
    (models / "short.bin").write_bytes(bytes(10))
    (outside / "secret").write_bytes(bytes(seeds.DATA_SIZE))
    (models / "in_link").symlink_to(seeds.DATA_FILE)
    (models / "out_link").symlink_to(outside / "secret")
    (models / "folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(models / "pipe")
