"""The output of `onnxfold adapters`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxfold.support.tables import Table, bytes_text

if TYPE_CHECKING:
    from onnxfold.runtime.adapter_matching import Fit
    from onnxfold.runtime.bundles.manifest import Manifest


def adapters_text(manifest: Manifest, found: Mapping[str, Sequence[Fit]]) -> Iterator[str | Table]:
    """Yield the constants that the tensors of adapters match, by file."""
    infos = {info.name: info for info in manifest.runtime_constants}
    for file, fits in found.items():
        rows = []
        for fit in fits:
            name = fit.constant
            changes = ("transposed" * fit.transposed, f"times {fit.factor:g}" * (fit.factor != 1))
            note = fit.problem or ", ".join(filter(None, changes))
            what = (name, str(infos[name])) if name is not None else ("", "")
            rows.append((fit.tensor, f"[{','.join(map(str, fit.shape))}]", *what, note))
        yield from (Table(("tensor", "shape", "runtime constant", "type", ""), rows), "")
        given = {fit.constant for fit in fits if fit.problem is None}
        rest = len(infos.keys() - given)
        left = f"; {rest} of {len(infos)} constants keep what the model has" if rest else ""
        yield f"{file}: {len(given)} of {len(fits)} tensors fit{left}"
        if manifest.cached:
            yield f"each adapter takes {bytes_text(manifest.cached_bytes)} when it is folded"
