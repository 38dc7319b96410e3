"""What a run will take in memory and bytes, known before anything large is done."""

from onnxfold.forecast.predict import predict
from onnxfold.forecast.prediction import Plan, Prediction

__all__ = ["Plan", "Prediction", "predict"]
