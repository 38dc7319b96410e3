"""A page that shows what was done: one file that asks for nothing else.

The data are collected (`skeleton`, `tensors`, `timeline`, `recording`), put into one document
(`documents`), and written with the templates and libraries of ``assets/`` (`render`).

`onnxfold.optimize_file(..., report=PATH)` writes one. So do these, of what others return:

>>> from onnxfold.report.page import write_compare_page, write_split_page
>>> write_compare_page(onnxfold.compare("a.onnx", "b.onnx"), "page.html")  # doctest: +SKIP
>>> write_split_page(onnxfold.split("m.onnx", "bundle"), "m.onnx", "page.html")  # doctest: +SKIP
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from onnxfold.report.page.documents import compare_document, split_document
from onnxfold.report.page.render import check_destination, write_page

if TYPE_CHECKING:
    from onnxfold.compare import Comparison
    from onnxfold.runtime.bundles.bundle import Bundle

__all__ = ["check_destination", "write_compare_page", "write_page", "write_split_page"]

PathLike = str | os.PathLike[str]


def write_compare_page(comparison: Comparison, path: PathLike) -> None:
    """Write the page of a comparison of two files.

    Args:
        comparison: What `onnxfold.compare` returned.
        path: Where the page goes; its data alone, if the name ends in .json.

    Raises:
        OnnxFoldError: It cannot be written, or one of the models cannot be read.
    """
    check_destination(path, comparison.a, comparison.b)
    write_page(compare_document(comparison), path)


def write_split_page(bundle: Bundle, source: PathLike, path: PathLike) -> None:
    """Write the page of a bundle.

    Args:
        bundle: What `onnxfold.split` returned.
        source: The model that it was made of.
        path: As for `write_compare_page`.

    Raises:
        OnnxFoldError: It cannot be written, or a model cannot be read.
    """
    check_destination(path, source)
    write_page(split_document(bundle, os.fspath(source)), path)
