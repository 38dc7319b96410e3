"""Serve one model with LoRA over HTTP: an adapter for each tenant, several worker processes."""

import argparse
import asyncio
import contextlib
import io
import json
import os
import socket
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import uvicorn
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from prometheus_counters import Metrics
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from tenants import Tenants, UnknownTenant

import onnxfold

NUMPY = {"tensor(float)": "float32", "tensor(double)": "float64"}  # other types have the same name
NPZ = "application/x-npz"


class Service:
    """The state of a worker process: a session, the handles of tenants and the counters."""

    def __init__(self, bundle: str, folder: str, metrics: str, specialize: bool) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1  # requests run in parallel instead
        options.log_severity_level = 3
        self.cache = onnxfold.FoldCache(Path(folder, "folds"), max_bytes=4 << 30)
        self.session = onnxfold.Session(bundle, options, cache=self.cache, specialize=specialize)
        self.types = {a.name: NUMPY.get(a.type, a.type[7:-1]) for a in self.session.get_inputs()}
        self.outputs = [a.name for a in self.session.get_outputs()]
        self.tenants = Tenants(self.session, Path(folder, "tenants"))
        self.metrics = Metrics(metrics)

    def run(self, tenant: str, body: bytes, as_npz: bool) -> tuple[bytes, int]:
        """Return the outputs for inputs in JSON, and the version of the adapter; thread-safe."""
        version = self.tenants.current(tenant)
        try:
            inputs = json.loads(body)["inputs"]
            feeds = {n: np.asarray(inputs[n], dtype) for n, dtype in self.types.items()}
        except (ValueError, TypeError, KeyError) as error:
            raise onnxfold.UsageError(f"inputs must be {self.types}: {error!r}") from error
        found = version.handle.run(None, feeds)
        outputs = dict(zip(self.outputs, found, strict=True))
        if as_npz:
            np.savez(file := io.BytesIO(), **outputs)
            return file.getvalue(), version.number
        lists = {name: array.tolist() for name, array in outputs.items()}
        return json.dumps({"outputs": lists}).encode(), version.number

    def write_metrics(self) -> None:
        """Write the counters of this worker to its file, which all workers read."""
        cache = self.cache.statistics()
        self.metrics.write(
            cache_hits_total=cache.hits,
            cache_misses_total=cache.misses,
            cache_waits_total=cache.waits,
            cache_bytes=cache.bytes,
            setting_bytes=self.session.setting_bytes,
        )


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Fold all adapters before the first request; write the counters twice a second."""
    service = app.state.service = Service(**json.loads(os.environ["ONNXFOLD_SERVE"]))
    await run_in_threadpool(service.tenants.warm_up)

    async def write_metrics() -> None:
        while True:
            service.write_metrics()
            await asyncio.sleep(0.5)

    writing = asyncio.create_task(write_metrics())
    yield
    writing.cancel()


async def run(request: Request) -> Response:
    """Run the model with the adapter of a tenant: POST {"inputs": {NAME: nested lists}}.

    The answer is {"outputs": {NAME: nested lists}}, or an .npz file if the client accepts it. An
    .npz file is many times as fast.
    """
    service, tenant = request.app.state.service, request.path_params["tenant"]
    kind = NPZ if request.headers.get("accept") == NPZ else "application/json"
    begin, failed = time.perf_counter(), 1
    try:
        body = await request.body()
        answer, version = await run_in_threadpool(service.run, tenant, body, kind == NPZ)
        failed = 0
    except UnknownTenant:
        tenant = "(unknown)"
        raise
    finally:
        seconds = time.perf_counter() - begin
        counts = {"requests_total": 1, "failures_total": failed, "seconds_total": seconds}
        service.metrics.add(tenant, **counts)
    return Response(answer, media_type=kind, headers={"Adapter-Version": str(version)})


async def put(request: Request) -> Response:
    """Replace the adapter of a tenant by a tar of its folder or file, for all later runs."""
    service, tenant = request.app.state.service, request.path_params["tenant"]
    with tempfile.TemporaryFile() as upload:
        async for part in request.stream():
            upload.write(part)
        upload.seek(0)
        number = await run_in_threadpool(service.tenants.put, tenant, upload)
    service.metrics.add(tenant, swaps_total=1)
    return JSONResponse({"version": number})


async def metrics(request: Request) -> Response:
    """Return the counters of all workers; those of others are up to half a second old."""
    request.app.state.service.write_metrics()
    return PlainTextResponse(request.app.state.service.metrics.text())


async def healthz(request: Request) -> Response:
    """Answer when the worker is ready."""
    return JSONResponse({"tenants": len(request.app.state.service.tenants.names())})


async def refused(request: Request, error: Exception) -> Response:
    """Return the reason why a request is rejected."""
    status = 404 if isinstance(error, UnknownTenant) else 400
    return JSONResponse({"error": str(error)}, status)


REFUSED = (UnknownTenant, onnxfold.OnnxFoldError, InvalidArgument, tarfile.TarError)
app = Starlette(
    routes=[
        Route("/v1/tenants/{tenant}/run", run, methods=["POST"]),
        Route("/v1/tenants/{tenant}", put, methods=["PUT"]),
        Route("/metrics", metrics),
        Route("/healthz", healthz),
    ],
    exception_handlers=dict.fromkeys(REFUSED, refused),
    lifespan=lifespan,
)


def main() -> None:
    """Start the workers; SIGTERM ends them after their current requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", help="folder written by onnxfold split")
    parser.add_argument("folder", help="folder of tenants/NAME/NUMBER and folds/")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--specialize", action="store_true", help="a session for each tenant")
    given = vars(parser.parse_args())
    workers, port = given.pop("workers"), given.pop("port")
    Path(given["folder"], "tenants").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as metrics:
        os.environ["ONNXFOLD_SERVE"] = json.dumps({**given, "metrics": metrics})
        with socket.create_server(("127.0.0.1", port)) as listening:
            # asyncio does not set TCP_NODELAY in workers, and answers would be delayed by 40 ms.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            how = {"workers": workers, "access_log": False}
            uvicorn.run("server:app", fd=listening.fileno(), **how)


if __name__ == "__main__":
    main()
