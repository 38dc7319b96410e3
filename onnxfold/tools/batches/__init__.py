"""Optimize many models, in worker processes on this machine, on a cluster, or with an executor."""

from onnxfold.tools.batches.batch_run import batch
from onnxfold.tools.batches.outcome import Batch, Outcome

__all__ = ["Batch", "Outcome", "batch"]
