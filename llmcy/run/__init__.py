"""Run folders: what a training run leaves on disk, and loading a model from it."""

from llmcy.run.directory import RunDirectory
from llmcy.run.model_file import LoadedModel, encode_model_file, load_model
from llmcy.run.settings import TrainSettings
from llmcy.run.training import TrainSummary, run_training

__all__ = [
    "LoadedModel",
    "RunDirectory",
    "TrainSettings",
    "TrainSummary",
    "encode_model_file",
    "load_model",
    "run_training",
]
