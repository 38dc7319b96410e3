"""A self-contained page about a run.

The data (`skeleton`, `documents`) are written with the templates and libraries of ``assets/``.

`onnxfold.optimize_file(..., report=PATH)` writes such a page, and so do these functions:

>>> from onnxfold.report.page import write_compare_page, write_split_page
>>> write_compare_page(onnxfold.compare("a.onnx", "b.onnx"), "page.html")  # doctest: +SKIP
>>> write_split_page(onnxfold.split("m.onnx", "bundle"), "m.onnx", "page.html")  # doctest: +SKIP
"""

from onnxfold.report.page.documents import (
    check_destination,
    write_compare_page,
    write_page,
    write_split_page,
)

__all__ = ["check_destination", "write_compare_page", "write_page", "write_split_page"]
