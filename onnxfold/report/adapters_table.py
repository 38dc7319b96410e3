"""What `onnxfold adapters` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table

from onnxfold.report.console import bytes_text, render
from onnxfold.runtime.adapters.matching import Fit
from onnxfold.runtime.bundles.manifest import Manifest


def adapters_text(manifest: Manifest, found: Mapping[str, Sequence[Fit]]) -> str:
    """Which constants the tensors of adapters are, by file, as text."""
    return render(*(line for file, fits in found.items() for line in _parts(manifest, file, fits)))


def _parts(manifest: Manifest, file: str, fits: Sequence[Fit]) -> Iterator[RenderableType]:
    infos = {info.name: info for info in manifest.runtime_constants}
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("tensor", "shape", "runtime constant", "type", ""):
        table.add_column(name)
    for fit in fits:
        shape = ",".join(map(str, fit.shape))
        constant = "" if fit.constant is None else fit.constant
        kind = str(infos[fit.constant]) if fit.constant is not None else ""
        table.add_row(fit.tensor, f"[{shape}]", constant, kind, _note(fit))
    yield table
    given = {fit.constant for fit in fits if fit.problem is None}
    rest = len(infos.keys() - given)
    left = f"; {rest} of {len(infos)} constants keep what the model has" if rest else ""
    yield f"{file}: {len(given)} of {len(fits)} tensors fit{left}"
    if manifest.cached:
        yield f"each adapter takes {bytes_text(manifest.cached_bytes)} when it is folded"


def _note(fit: Fit) -> str:
    if fit.problem is not None:
        return fit.problem
    scaled = f"times {fit.factor:g}" if fit.factor != 1 else ""
    return ", ".join(filter(None, ("transposed" if fit.transposed else "", scaled)))
