"""What a run will take in memory, bytes and time, known before anything large is done."""

from onnxfold.forecast.predict import predict
from onnxfold.forecast.prediction import Plan, Prediction

__all__ = ["Plan", "Prediction", "predict"]
