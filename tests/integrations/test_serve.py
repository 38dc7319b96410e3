"""Test the service of examples/serve, which runs with two workers, under load."""

import io
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import psutil
import pytest

import onnxfold
from onnxfold.runtime.adapter_files import read_adapter

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LORA = ROOT / "models" / "lora"
MODEL = LORA / "dynamo.onnx"
TENANTS = [f"tenant{k}" for k in range(8)]
SWAPPED = "tenant3"
SECONDS = 6
CLIENTS = 6

WEIGHTS = {
    "q_proj": ("val_153", "val_154"),
    "k_proj": ("val_163", "val_164"),
    "v_proj": ("val_172", "val_173"),
    "o_proj": ("val_326", "val_327"),
}
"""Names of the adapter factors A and B in the model. The model scales their product by 16 / 8."""


def make_adapter(folder: Path, seed: int) -> None:
    """Write a random adapter of rank 2 or 8, based on an adapter that peft has saved."""
    source = LORA / ("rank2", "rank8")[seed % 2]
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    content = bytearray((source / "adapter_model.safetensors").read_bytes())
    weights = np.frombuffer(content, np.float32, offset=8 + int.from_bytes(content[:8], "little"))
    weights += np.random.default_rng(seed).normal(0, 0.3, weights.shape)
    (folder / "adapter_model.safetensors").write_bytes(content)


def reference(adapter: Path) -> ort.InferenceSession:
    """Return an onnxruntime session on the original model with the weights of an adapter."""
    model = onnx.load(MODEL)
    config = json.loads((adapter / "adapter_config.json").read_text())
    factor = config["lora_alpha"] / config["r"] / (16 / 8)
    new = {}
    for name, tensor in read_adapter(adapter).tensors.items():
        module, kind = name.split(".")[-3:-1]
        is_b = kind == "lora_B"
        array = np.asarray(tensor).T * np.float32(factor if is_b else 1)
        new[WEIGHTS[module][is_b]] = array
    for weight in model.graph.initializer:
        if weight.name in new:
            weight.CopyFrom(onnx.numpy_helper.from_array(new.pop(weight.name), weight.name))
    assert not new
    del model.graph.value_info[:]
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def is_near(got: np.ndarray, want: np.ndarray) -> bool:
    """Return whether results are equal except for the rounding of level 2.

    The largest relative difference in 13,500 runs was 1.0e-5. `differences` asserts that the
    results of different adapters differ by more than 1e-2.
    """
    return got.shape == want.shape and abs(got - want).max() < 1e-4 * abs(want).max()


class Client:
    """A client that opens a new connection every 10 requests, so that it reaches both workers."""

    def __init__(self, port: int, accept: str = "*/*") -> None:
        self.port = port
        self.accept = accept
        self.headers: Mapping[str, str] = {}
        self.count = 0
        self.connection: HTTPConnection | None = None

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        if self.connection is None:
            self.connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.connection.request(method, path, body, {"Accept": self.accept})
        answer = self.connection.getresponse()
        content = answer.read()
        self.headers = answer.headers
        self.count += 1
        if self.count % 10 == 0:
            self.connection.close()
            self.connection = None
        return answer.status, content

    def run(self, tenant: str, ids: np.ndarray) -> tuple[int, np.ndarray]:
        """Return the version of the adapter, and the logits."""
        body = json.dumps({"inputs": {"input_ids": ids.tolist()}}).encode()
        status, content = self.ask("POST", f"/v1/tenants/{tenant}/run", body)
        assert status == 200, content
        if self.accept == "application/x-npz":
            logits = np.load(io.BytesIO(content))["logits"]
        else:
            logits = np.array(json.loads(content)["outputs"]["logits"], np.float32)
        return int(self.headers["Adapter-Version"]), logits

    def metrics(self) -> dict[str, Counter[str]]:
        """Return the value of each metric by worker, as the sum over the tenants."""
        status, content = self.ask("GET", "/metrics")
        assert status == 200
        found: dict[str, Counter[str]] = {}
        pattern = r'onnxfold_(\w+)\{worker="(\d+)"(?:,tenant=".+")?\} ([\d.e+-]+)'
        for line in content.decode().splitlines():
            if not line.startswith("# TYPE onnxfold_"):
                name, worker, value = re.fullmatch(pattern, line).groups()
                found.setdefault(name, Counter())[worker] += float(value)
        return found


class Load(threading.Thread):
    """A client that sends requests for random tenants, and records the times and the answers.

    Attributes:
        answers: For each request, the start time, the end time, the tenant, the ids, the version of
            the adapter, and the logits.
        error: The exception that ended the thread, or None.
    """

    def __init__(self, port: int, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self.client = Client(port, ["application/json", "application/x-npz"][seed % 2])
        self.rng = np.random.default_rng(seed)
        self.stop = stop
        self.answers: list[tuple[float, float, str, np.ndarray, int, np.ndarray]] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                tenant = TENANTS[self.rng.integers(len(TENANTS))]
                ids = self.rng.integers(0, 50, self.rng.integers(1, [4, 20]))
                begin = time.monotonic()
                version, logits = self.client.run(tenant, ids)
                self.answers.append((begin, time.monotonic(), tenant, ids, version, logits))
        except Exception as error:
            self.error = error


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    reason = (
        "the service of examples/serve needs it: pip install -r examples/serve/requirements.txt"
    )
    pytest.importorskip("starlette", reason=reason)
    pytest.importorskip("uvicorn", reason=reason)
    onnxfold.split(MODEL, tmp_path / "bundle", runtime_constants=["*.lora_?.*"], level=2)
    for seed, tenant in enumerate(TENANTS):
        make_adapter(tmp_path / "state" / "tenants" / tenant / "1", seed)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [ROOT / "examples" / "serve" / "server.py", tmp_path / "bundle", tmp_path / "state"]
    command = [sys.executable, *words, "--workers", "2", "--port", port]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen([str(w) for w in command], stdout=log, stderr=log, text=True)
    try:
        wait_for_workers(process, tmp_path / "log")
        yield process, port
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        print((tmp_path / "log").read_text())


def wait_for_workers(process: subprocess.Popen[str], log: Path) -> None:
    end = time.monotonic() + 120
    while log.read_text(encoding="utf-8").count("Application startup complete") < 2:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < end, log.read_text(encoding="utf-8")
        time.sleep(0.1)


def test_tenants_are_served_while_an_adapter_is_replaced(service, tmp_path):
    process, port = service
    stop = threading.Event()
    loads = [Load(port, seed, stop) for seed in range(CLIENTS)]
    for load in loads:
        load.start()
    time.sleep(SECONDS / 2)
    make_adapter(tmp_path / "new", 11)
    swapping = time.monotonic()
    status, content = Client(port).ask("PUT", f"/v1/tenants/{SWAPPED}", tar_of(tmp_path / "new"))
    swapped = time.monotonic()
    assert (status, json.loads(content)) == (200, {"version": 2})
    time.sleep(SECONDS / 2)
    stop.set()
    for load in loads:
        load.join()
    assert [load.error for load in loads if load.error] == []

    # compare every answer with onnxruntime's result for the original model and the used adapter
    sessions = {(t, 1): reference(tmp_path / "state/tenants" / t / "1") for t in TENANTS}
    sessions[SWAPPED, 2] = reference(tmp_path / "new")
    answers = list(itertools.chain.from_iterable(load.answers for load in loads))
    for _, _, tenant, ids, version, logits in answers:
        (want,) = sessions[tenant, version].run(None, {"input_ids": ids})
        assert is_near(logits, want)
    of_swapped = [a for a in answers if a[2] == SWAPPED]
    assert {a[4] for a in of_swapped if a[1] < swapping} == {1}
    assert {a[4] for a in of_swapped if a[0] > swapped} == {2}
    assert set(sessions) == {(a[2], a[4]) for a in answers}
    differences(sessions)

    # both workers have answered, and together they have folded every adapter only once
    time.sleep(1)  # workers write their counters twice a second
    figures = Client(port).metrics()
    assert figures["requests_total"].total() == len(answers)
    assert figures["failures_total"].total() == 0
    assert figures["swaps_total"].total() == 1
    assert len(figures["requests_total"]) == 2
    alone = onnxfold.FoldCache()
    session = onnxfold.Session(tmp_path / "bundle", cache=alone)
    for adapter in (*(tmp_path / "state/tenants").glob("*/1"), tmp_path / "new"):
        session.fold(adapter)
    assert figures["cache_misses_total"].total() == alone.statistics().misses >= 9
    assert set(figures["cache_bytes"].values()) == {alone.statistics().bytes}

    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    with pytest.raises(ConnectionRefusedError):
        Client(port).run(SWAPPED, ids)
    assert not [worker for worker in figures["cache_bytes"] if psutil.pid_exists(int(worker))]


def test_invalid_requests_are_refused_and_change_nothing(service, tmp_path):
    _, port = service
    client = Client(port)
    ids = np.ones((1, 3), np.int64)
    version, before = client.run(SWAPPED, ids)
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "adapter.npz", nothing=np.ones(3))
    url = f"/v1/tenants/{SWAPPED}"
    for method, path, body, expected, reason in (
        ("PUT", url, b"no tar", 400, "truncated header"),
        ("PUT", url, tar_of(tmp_path / "other"), 400, "no runtime constant has this name"),
        ("PUT", "/v1/tenants/..", tar_of(LORA / "rank8"), 404, "there is no tenant '..'"),
        ("POST", f"{url}/run", b"{}", 400, "inputs must be"),
        ("POST", f"{url}/run", b'{"inputs": {"input_ids": [[99]]}}', 400, "out of data bounds"),
        ("POST", "/v1/tenants/nobody/run", b"{}", 404, "there is no tenant 'nobody'"),
    ):
        status, content = client.ask(method, path, body)
        assert status == expected
        assert reason in json.loads(content)["error"]
    again, after = client.run(SWAPPED, ids)
    assert (version, before.tobytes()) == (again, after.tobytes())
    assert client.ask("GET", "/healthz") == (200, b'{"tenants":8}')
    assert sorted(os.listdir(tmp_path / "state/tenants")) == TENANTS

    # an adapter can also be a single file in a tar, and the request can create a tenant
    tensors = read_adapter(LORA / "rank8").tensors
    np.savez(tmp_path / "other" / "adapter.npz", **tensors)
    status, content = client.ask("PUT", "/v1/tenants/another", tar_of(tmp_path / "other"))
    assert (status, json.loads(content)) == (200, {"version": 1})
    known = np.load(LORA / "rank8" / "expected.npz")
    assert is_near(client.run("another", known["ids"])[1], known["logits"])


def test_reference_equals_pytorch():
    for rank in ("rank2", "rank8"):
        known = np.load(LORA / rank / "expected.npz")
        (logits,) = reference(LORA / rank).run(None, {"input_ids": known["ids"]})
        assert is_near(logits, known["logits"])


def differences(sessions: dict[tuple[str, int], ort.InferenceSession]) -> None:
    """Assert that all adapters give different results, so that a wrong adapter is detected."""
    ids = np.arange(12).reshape(1, 12)
    logits = [session.run(None, {"input_ids": ids})[0] for session in sessions.values()]
    for one, other in itertools.combinations(logits, 2):
        assert abs(one - other).max() > 1e-2 * abs(other).max()


def tar_of(folder: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(folder, ".")
    return content.getvalue()
