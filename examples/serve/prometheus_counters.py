"""Counters of all worker processes in Prometheus' text format."""

import json
import os
from collections import Counter
from pathlib import Path


class Metrics:
    """The counters of this worker, which it writes to a file. All workers read all files.

    The methods are not thread-safe: only the event loop of the worker may call them.
    """

    def __init__(self, folder: str) -> None:
        self._file = Path(folder) / f"{os.getpid()}.json"
        self._tenants: dict[str, Counter[str]] = {}

    def add(self, tenant: str, **counts: float) -> None:
        """Add to counters of a tenant."""
        self._tenants.setdefault(tenant, Counter()).update(counts)

    def write(self, **process: float) -> None:
        """Write the counters of the tenants and `process` to the file of this worker."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps({"": process, **self._tenants}))
        temporary.replace(self._file)

    def text(self) -> str:
        """Return the counters of all workers from their files."""
        lines: dict[str, list[str]] = {}
        for file in sorted(self._file.parent.glob("*.json")):
            for tenant, figures in json.loads(file.read_text()).items():
                labels = f'worker="{file.stem}"' + (f',tenant="{tenant}"' if tenant else "")
                for name, value in figures.items():
                    kind = "counter" if name.endswith("_total") else "gauge"
                    of_name = lines.setdefault(name, [f"# TYPE onnxfold_{name} {kind}"])
                    of_name.append(f"onnxfold_{name}{{{labels}}} {value}")
        return "".join(f"{line}\n" for of_name in lines.values() for line in of_name)
