"""The output of `onnxfold adapters`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from onnxfold.support.tables import Table, bytes_text

if TYPE_CHECKING:
    from onnxfold.runtime.adapter_matching import Fit
    from onnxfold.runtime.bundles.manifest import Manifest


def adapters_text(
    manifest: Manifest, fits_by_file: Mapping[str, Sequence[Fit]]
) -> Iterator[str | Table]:
    """Yield the tables and lines about each file of adapters.

    The table has the tensors of the file and the runtime constants that match them. The lines have
    the numbers of tensors that fit and of constants that do not match, and the size of a folded
    adapter.
    """
    infos = {info.name: info for info in manifest.runtime_constants}
    for file, fits in fits_by_file.items():
        rows = []
        for fit in fits:
            name = fit.constant
            changes = []
            if fit.transposed:
                changes.append("transposed")
            if fit.factor != 1:
                changes.append(f"times {fit.factor:g}")
            note = fit.problem or ", ".join(changes)
            constant = (name, str(infos[name])) if name is not None else ("", "")
            rows.append((fit.tensor, f"[{','.join(map(str, fit.shape))}]", *constant, note))
        yield from (Table(("tensor", "shape", "runtime constant", "type", ""), rows), "")
        matched = {fit.constant for fit in fits if fit.problem is None}
        unmatched = len(infos.keys() - matched)
        line = f"{file}: {len(matched)} of {len(fits)} tensors fit"
        if unmatched:
            line += f"; {unmatched} of {len(infos)} constants keep the values of the model"
        yield line
        if manifest.cached:
            yield f"each adapter takes {bytes_text(manifest.cached_bytes)} when it is folded"
