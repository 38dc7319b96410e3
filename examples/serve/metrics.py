"""Counters of all worker processes, as text for Prometheus."""

import json
import os
from collections import Counter
from pathlib import Path


class Metrics:
    """What this worker counts; it writes it to a file, and shows the files of all workers.

    Only the worker's event loop may call it.
    """

    def __init__(self, folder: str) -> None:
        self._file = Path(folder) / f"{os.getpid()}.json"
        self._tenants: dict[str, Counter[str]] = {}

    def add(self, tenant: str, **counts: float) -> None:
        """Count something of a tenant."""
        self._tenants.setdefault(tenant, Counter()).update(counts)

    def write(self, **process: float) -> None:
        """Write this worker's figures to its file, with those that it has besides tenants'."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps({"": process, **self._tenants}))
        temporary.replace(self._file)

    def text(self) -> str:
        """All workers' figures as they wrote them last."""
        lines: dict[str, list[str]] = {}
        for file in sorted(self._file.parent.glob("*.json")):
            for tenant, figures in json.loads(file.read_text()).items():
                labels = f'worker="{file.stem}"' + (f',tenant="{tenant}"' if tenant else "")
                for name, value in figures.items():
                    kind = "counter" if name.endswith("_total") else "gauge"
                    of_name = lines.setdefault(name, [f"# TYPE onnxfold_{name} {kind}"])
                    of_name.append(f"onnxfold_{name}{{{labels}}} {value}")
        return "".join(f"{line}\n" for of_name in lines.values() for line in of_name)
