"""Optimizing many models: worker processes on this machine, a cluster, or any executor."""

from onnxfold.tools.batches.batch_run import batch
from onnxfold.tools.batches.outcome import Batch, Outcome

__all__ = ["Batch", "Outcome", "batch"]
