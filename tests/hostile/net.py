"""The files: those of the corpus, and others by their numbers."""

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
"""Files that were found once, or are worth a look at every run."""


def file_of(seed: int, number: int, *, all_ops: bool = True) -> tuple[bytes, str]:
    """A file and what it is: every fourth is a graph of ours, the others are mutations."""
    if number < 0:
        return CORPUS[number].read_bytes(), CORPUS[number].name
    rng = random.Random(f"{seed}:{number}")
    if rng.random() >= 0.25:
        return mutate(rng, seeds.any_seed(rng, all_ops=all_ops))
    data, about = hostile_graphs.make(rng)
    if rng.random() < 0.1 and len(data) < 20000:
        data, change = mutate(rng, data)
        about += f"; {change}"
    return data, about


def run(
    seed: int,
    numbers: Sequence[int],
    *,
    all_ops: bool = True,
    keep: Path | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> Found:
    """Take files through the steps; negative numbers are those of the corpus.

    With ``all_ops``, onnx's own test models are mutated, too. Files that fail in a new way are kept
    in a folder, and shown.
    """

    def call(number: int) -> tuple[Any, ...]:
        data, about = file_of(seed, number, all_ops=all_ops)
        return "check_file", str(room), data, f"{number}: {about:.200}", number % 10 == 0

    def classify(number: int, failure: Failure) -> tuple[str, str]:
        key = f"{failure.variant}: {failure.kind} {failure.place}"
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            name = "".join(c if c.isalnum() else "_" for c in key)[:80]
            (keep / f"{name}.onnx").write_bytes(file_of(seed, number, all_ops=all_ops)[0])
        return key, ""

    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        room = Path(folder, "models")
        _furnish(room, Path(folder))
        worker = Worker("tests.hostile.worker", cpu_seconds=10)
        return drive(worker, numbers, call, classify, seconds=60, show=show)  # it may be asleep


def _furnish(room: Path, outside: Path) -> None:
    """What external data may be looked for at: a file, links, a folder, a pipe."""
    room.mkdir()
    (room / seeds.DATA_FILE).write_bytes(random.Random(0).randbytes(seeds.DATA_SIZE))
    (room / "short.bin").write_bytes(bytes(10))
    (outside / "secret").write_bytes(bytes(seeds.DATA_SIZE))
    (room / "in_link").symlink_to(seeds.DATA_FILE)
    (room / "out_link").symlink_to(outside / "secret")
    (room / "folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(room / "pipe")
