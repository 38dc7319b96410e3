"""Reports: what a run did, and the tables that show it."""

from onnxfold.memory import peak_rss_bytes
from onnxfold.report.summary import Report

__all__ = ["Report", "peak_rss_bytes"]
