"""Optimizing many models: worker processes on this machine, a cluster, or any executor."""

from onnxfold.batches.batch_run import batch
from onnxfold.batches.outcome import Batch, Outcome

__all__ = ["Batch", "Outcome", "batch"]
