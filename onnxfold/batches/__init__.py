"""Optimizing many models: worker processes on this machine, a cluster, or any executor."""

from onnxfold.batches.outcome import Batch, Outcome
from onnxfold.batches.run import batch

__all__ = ["Batch", "Outcome", "batch"]
