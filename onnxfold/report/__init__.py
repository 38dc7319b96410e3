"""Reports: what a run did, and the tables that show it."""

from onnxfold.memory import peak_rss_bytes
from onnxfold.report.summary import Kept, Report

__all__ = ["Kept", "Report", "peak_rss_bytes"]
