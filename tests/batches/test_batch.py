"""Test batches: results, failures, repeated batches, journals, and executors."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_table import saved

import onnxfold
from onnxfold.cli import main
from onnxfold.support.errors import OnnxFoldError, UsageError

from .batch_models import large_model, small_model, write_many

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    write_many(folder, 10, 0)
    return folder


def results(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.onnx"))}


def single_runs(folder: Path, output: Path) -> dict[str, bytes]:
    for path in folder.rglob("*.onnx"):
        target = output / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        onnxfold.optimize_file(path, target)
    return results(output)


def test_results_equal_those_of_single_runs(models: Path, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    (models / "again").symlink_to(models)  # a link to a folder that contains it is not followed
    sources = [models, f"{models}/../{models.name}"]  # the same folder
    done = onnxfold.batch(
        sources, tmp_path / "out", workers=2, progress=lambda _, n, total: seen.append((n, total))
    )
    assert done.count() == {"done": 10}
    assert results(tmp_path / "out") == single_runs(models, tmp_path / "one by one")
    assert len(seen) == 10
    assert seen[-1][0] == seen[-1][1]
    assert sorted(seen) == seen
    swin = next(o for o in done.outcomes if o.source.endswith("m9.onnx"))
    assert (swin.nodes_before, swin.nodes_after) == (1619, 194)
    assert swin.memory and swin.peak


def test_second_batch_repeats_only_missing_and_changed_models(models: Path, tmp_path: Path):
    out = tmp_path / "out"
    onnxfold.batch(models, out)
    before = results(out)
    os.remove(out / "d0" / "m0.onnx")
    (out / "d1" / "m1.onnx").write_bytes(b"somebody else's")
    (models / "d2" / "m2.onnx").write_bytes(small_model(1002).SerializeToString())
    again = onnxfold.batch(models, out)
    assert again.count() == {"done": 3, "unchanged": 7}
    after = results(out)
    assert [name for name in after if after[name] != before[name]] == ["d2/m2.onnx"]
    assert onnxfold.batch(models, out).count() == {"unchanged": 10}
    assert onnxfold.batch(models, out, level=0).count() == {"done": 10}


def test_batch_accepts_a_target_and_definitions_of_ops(tmp_path: Path):
    source = tmp_path / "in" / "t5-decoder.onnx"
    source.parent.mkdir()
    shutil.copy(MODELS / "t5-decoder.onnx", source)
    ops = shutil.copy(Path(__file__).parents[1] / "ops" / "reversal.py", tmp_path / "ops.py")
    options = {"target": "onnxruntime", "ops": [ops]}
    done = onnxfold.batch(source.parent, tmp_path / "out", **options)
    assert done.count() == {"done": 1}
    onnxfold.optimize_file(source, tmp_path / "alone.onnx", **options)
    batched = (tmp_path / "out" / "t5-decoder.onnx").read_bytes()
    assert batched == (tmp_path / "alone.onnx").read_bytes()
    assert onnxfold.batch(source.parent, tmp_path / "out", **options).count() == {"unchanged": 1}
    Path(ops).write_text(Path(ops).read_text() + "# changed")
    assert onnxfold.batch(source.parent, tmp_path / "out", **options).count() == {"done": 1}


def test_batch_rejects_a_target_that_is_not_installed(models: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="there is no target 'elsewhere'"):
        onnxfold.batch(models, tmp_path / "out", target=onnxfold.Target("elsewhere"))


def test_failures_of_invalid_models_are_recorded(tmp_path: Path):
    folder = tmp_path / "in"
    out = tmp_path / "out"
    bad = write_many(folder, 9, 3)
    done = onnxfold.batch(folder, out)
    assert [o.source for o in done.failed] == sorted(map(str, bad))
    assert all(o.reason is not None and o.reason.startswith(o.source) for o in done.failed)
    assert len(results(out)) == 6
    lines = (out / "onnxfold-batch.jsonl").read_text().splitlines()
    again = onnxfold.batch(folder, out)
    assert again.count() == {"failed": 3, "unchanged": 6}
    assert again.failed == done.failed
    assert (out / "onnxfold-batch.jsonl").read_text().splitlines() == lines
    assert len(onnxfold.batch(f"{folder}/../in", out).failed) == 3  # the same folder


def test_a_missing_data_file_is_named_after_its_model(tmp_path: Path):
    weights = {"save_as_external_data": True, "location": "w", "size_threshold": 0}
    onnx.save(small_model(0), tmp_path / "m.onnx", **weights)
    (tmp_path / "w").unlink()
    (failed,) = onnxfold.batch(tmp_path / "m.onnx", tmp_path / "out").failed
    assert failed.reason == f"{tmp_path}/m.onnx: {tmp_path}/w: No such file or directory"


def test_models_that_exceed_time_or_memory_fail(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "small.onnx").write_bytes(small_model(0).SerializeToString())
    large_model(folder / "large.onnx", 6_000)
    slow = onnxfold.batch(folder, tmp_path / "slow", timeout=0.001)
    assert [o.reason for o in slow.failed] == [
        f"{folder}/{name}.onnx: it takes longer than 0.001 s" for name in ("large", "small")
    ]
    plans = onnxfold.batch(folder, tmp_path / "nothing", only_plan=True)
    assert plans.journal is None and not (tmp_path / "nothing").exists()
    large, small = (o.memory or 0 for o in plans.outcomes)
    assert large > small
    tight = onnxfold.batch(folder, tmp_path / "tight", memory=(large + small) // 2)
    assert [o.source for o in tight.failed] == [f"{folder}/large.onnx"]
    assert "of memory, but a worker has" in (tight.failed[0].reason or "")
    assert onnxfold.batch(folder, tmp_path / "tight").count() == {"done": 1, "unchanged": 1}
    assert onnxfold.batch(folder, tmp_path / "none", memory=0).count() == {"failed": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")
def test_models_of_killed_workers_are_repeated(tmp_path: Path):
    folder = tmp_path / "in"
    out = tmp_path / "out"
    write_many(folder, 10, 0)
    killed: list[str] = []

    def kill_one(stage: str, done: int, total: int) -> None:
        """Kill one of the two workers after the first model."""
        tasks = Path("/proc/self/task").glob("*/children")
        for pid in " ".join(task.read_text() for task in tasks).split():
            if (
                not killed
                and b"onnxfold.support.isolated" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ):
                os.kill(int(pid), signal.SIGKILL)
                killed.append(pid)

    done = onnxfold.batch(folder, out, workers=2, progress=kill_one)
    assert killed
    assert done.count() == {"done": 10}
    assert results(out) == single_runs(folder, tmp_path / "one by one")


def spawned(workers: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes.

    A fork of this process may hang, because this process has threads. On Linux, fork is the default
    method up to Python 3.13.
    """
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, spawned])
def test_batch_accepts_any_executor(kind, models: Path, tmp_path: Path):
    with kind(2) as executor:
        done = onnxfold.batch(f"{models}/d[01]/*.onnx", tmp_path / "out", executor=executor)
    assert done.count() == {"done": 4}
    assert {Path(o.target).parent.name for o in done.outcomes} == {"d0", "d1"}


def test_urls(models: Path, tmp_path: Path):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    swin = onnxfold.load("models/swin.onnx")
    onnxfold.save(swin, tmp_path / "swin.onnx", external_data=True)
    for path in [*models.glob("d0/*"), *tmp_path.glob("swin*")]:
        store.put_file(str(path), f"/bucket/in/{path.name}")
    journal = tmp_path / "journal.jsonl"
    urls = ("memory://bucket/in/*.onnx", "memory://bucket/out")
    done = onnxfold.batch(*urls, journal=journal)
    assert done.count() == {"done": 3}
    assert store.exists("/bucket/out/swin.onnx.data")
    assert onnxfold.batch(*urls, journal=journal).count() == {"unchanged": 3}
    with pytest.raises(UsageError, match="a journal must be given"):
        onnxfold.batch(*urls)


def test_next_batch_removes_the_copies_of_a_killed_batch(tmp_path: Path):
    pytest.importorskip("fsspec")
    folder = tmp_path / "in"
    copies = tmp_path / "temporary"
    write_many(folder, 3, 0)
    copies.mkdir()
    source = f"file://{folder}"
    out = str(tmp_path / "out")
    environment = {**os.environ, "TMPDIR": str(copies)}
    command = [sys.executable, "-m", "onnxfold", "batch", source, "-o", out, "--workers", "1"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as batch:
        while not list(copies.rglob("*.onnx")):
            assert batch.poll() is None
        batch.kill()
    assert list(copies.rglob("*.onnx"))
    # no process of the killed batch holds a lock any more
    subprocess.run(command, stderr=subprocess.DEVNULL, env=environment, check=True)
    assert not list(copies.iterdir())


def test_invalid_arguments_are_rejected(models: Path, tmp_path: Path):
    other = tmp_path / "other" / "d0"
    out = tmp_path / "out"
    other.mkdir(parents=True)
    (other / "m0.onnx").write_bytes(b"")
    (tmp_path / "notes").write_text("no journal\n")
    for sources, output, reason, options in (
        (tmp_path / "nowhere", out, "there is no model", {}),
        ([models, tmp_path / "other"], out, "would both be written to", {}),
        (models, out, "level must be", {"level": 7}),
        (models, out, "not a journal of a batch", {"journal": tmp_path / "notes"}),
    ):
        with pytest.raises(UsageError, match=reason):
            onnxfold.batch(sources, output, **options)
    with pytest.raises(onnxfold.OnnxFoldError, match="cannot be written: File exists"):
        onnxfold.batch(other / "m0.onnx", tmp_path / "notes")
    assert not out.exists()


def test_truncated_lines_of_a_journal_are_ignored(models: Path, tmp_path: Path):
    out = tmp_path / "out"
    onnxfold.batch(models, out)
    journal = out / "onnxfold-batch.jsonl"
    text = journal.read_text()
    journal.write_text(text[: len(text) - 40])
    assert onnxfold.batch(models, out).count() == {"done": 1, "unchanged": 9}
    assert onnxfold.batch(models, out).count() == {"unchanged": 10}
    journal.write_text(text[:40])
    assert onnxfold.batch(models, out, passes=["dead-code"]).count() == {"done": 10}


def test_command_reports_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "in"
    out = tmp_path / "out"
    write_many(folder, 6, 1)
    assert main(["batch", str(folder), "-o", str(out), "--check", "1", "-v"]) == 2
    text = capsys.readouterr().out
    assert "6 models: 5 done, 1 failed" in text
    assert f"failed: {folder}/d0/m0.onnx: not an ONNX model, or damaged" in text
    assert main(["batch", str(folder), "-o", str(out), "--check", "1", "-q"]) == 2
    quiet = capsys.readouterr()
    assert quiet.out == "" and f"error: {folder}/d0/m0.onnx: not an ONNX model" in quiet.err
    assert main(["batch", f"{folder}/d[1-4]/*.onnx", "-o", str(out), "--check", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["count"] == {"unchanged": 4}
    assert main(["batch", f"{folder}/d[1-4]/*.onnx", "-o", str(tmp_path / "b"), "--plan"]) == 0
    assert "4 models: 4 planned" in capsys.readouterr().out
    assert not (tmp_path / "b").exists()


def test_check_accepts_the_options_of_compare(tmp_path: Path):
    folder = tmp_path / "in"
    out = tmp_path / "out"
    folder.mkdir()
    saved("g (float[n, 2] x) => (float[n, 2] y) { y = Abs(x) }", folder / "m.onnx")
    feeds = tmp_path / "feeds.npz"
    np.savez(feeds, x=np.ones((2, 3), np.float32))
    failed = onnxfold.batch(folder, out, feeds=feeds).failed
    assert len(failed) == 1 and "fails on the feeds 'feeds.npz'" in failed[0].reason
    np.savez(feeds, x=np.ones((3, 2), np.float32))
    assert onnxfold.batch(folder, out, feeds=feeds).count() == {"done": 1}
    assert onnxfold.batch(folder, out, feeds=feeds).count() == {"unchanged": 1}
    assert onnxfold.batch(folder, out, feeds=feeds, check=2).count() == {"done": 1}
    np.savez(feeds, x=np.ones((4, 2), np.float32))
    assert onnxfold.batch(folder, out, feeds=feeds).count() == {"done": 1}
    assert main(["batch", str(folder), "-o", str(out), "--check-dim", "n=4", "--rtol", "1"]) == 0
    assert main(["batch", str(folder), "-o", str(out), "--check-dim", "m=4"]) == 2
    with pytest.raises(UsageError, match="feeds of a batch must be files"):
        onnxfold.batch(folder, out, feeds={"x": np.ones((3, 2), np.float32)})


def test_signal_leaves_no_partial_files(tmp_path: Path):
    folder = tmp_path / "in"
    out = tmp_path / "out"
    write_many(folder, 40, 0)
    command = [sys.executable, "-m", "onnxfold", "batch", str(folder), "-o", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as batch:
        while not (out / "onnxfold-batch.jsonl").exists() and batch.poll() is None:
            time.sleep(0.02)
        batch.terminate()
        _, error = batch.communicate(timeout=600)
    assert "ended by SIGTERM" in error
    assert batch.returncode == 128 + signal.SIGTERM
    other_files = [p.name for p in out.rglob("*") if p.is_file() and p.suffix != ".onnx"]
    assert other_files == ["onnxfold-batch.jsonl"]
    finished = len(results(out))
    assert finished < 40
    again = onnxfold.batch(folder, out)
    # models that were written, but not recorded in the journal, are repeated
    assert again.count().get("unchanged", 0) >= finished - 2
    assert results(out).keys() == results(folder).keys()


def test_invalid_scheduler_address_is_reported(models: Path, tmp_path: Path):
    pytest.importorskip("distributed")
    with pytest.raises(OnnxFoldError, match="there is no dask scheduler at nowhere: missing port"):
        onnxfold.batch(models, tmp_path / "out", scheduler="nowhere")


@pytest.mark.slow
def test_three_hundred_models_on_a_cluster(tmp_path: Path):
    distributed = pytest.importorskip("distributed")
    folder = tmp_path / "in"
    here = tmp_path / "here"
    there = tmp_path / "there"
    bad = write_many(folder, 297, 20)
    large = [folder / f"large{k}.onnx" for k in range(3)]
    for k, path in enumerate(large):
        large_model(path, 100_000 + k)
    limit = 450_000_000
    wrong = sorted(map(str, [*bad, *large]))
    done = onnxfold.batch(folder, here, workers=2, memory=limit)
    assert sorted(o.source for o in done.failed) == wrong
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit=limit, dashboard_address=None
    ) as cluster:
        pid = next(iter(cluster.workers.values())).process.pid
        killer = threading.Timer(4, os.kill, [pid, signal.SIGKILL])
        killer.start()
        done = onnxfold.batch(folder, there, scheduler=cluster.scheduler_address)
        killer.join()
        assert sorted(o.source for o in done.failed) == wrong
        again = onnxfold.batch(folder, there, scheduler=cluster.scheduler_address)
        assert again.count() == {"failed": 23, "unchanged": 277}
    assert results(there) == results(here)
