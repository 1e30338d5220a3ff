"""Run folders: what a training run leaves on disk, continuing it, and loading a model from it."""

from llmcy.run.directory import RunDirectory
from llmcy.run.evaluation import PartitionLoss, evaluate_partition, evaluate_test
from llmcy.run.extension import Extension
from llmcy.run.initial import InitialModel, load_initial
from llmcy.run.job import Watcher
from llmcy.run.model_file import LoadedModel, Provenance, encode_model_file, load_model
from llmcy.run.options import JobOptions
from llmcy.run.plan import RunPlan
from llmcy.run.settings import TrainSettings, make_schedule
from llmcy.run.stopping import StopRequest
from llmcy.run.training import TrainSummary, resume_training, run_training

__all__ = [
    "Extension",
    "InitialModel",
    "JobOptions",
    "LoadedModel",
    "PartitionLoss",
    "Provenance",
    "RunDirectory",
    "RunPlan",
    "StopRequest",
    "TrainSettings",
    "TrainSummary",
    "Watcher",
    "encode_model_file",
    "evaluate_partition",
    "evaluate_test",
    "load_initial",
    "load_model",
    "make_schedule",
    "resume_training",
    "run_training",
]
