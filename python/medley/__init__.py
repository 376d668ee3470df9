"""Medley trains one PyTorch model on heterogeneous GPUs and CPUs.

graph = medley.capture(model, example_batch)
plan = medley.plan(graph, cluster="cluster.yaml", global_batch=256)
trainer = medley.Trainer(model, graph, plan, optimizer=medley.AdamW(lr=3e-4))
for batch in loader:
    metrics = trainer.step(batch)
trainer.save_model("out/")
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medley import optimizer as optimizer
    from medley.callbacks import Callback as Callback
    from medley.callbacks import Progress as Progress
    from medley.capture.draws import substitute as substitute
    from medley.cluster import Cluster as Cluster
    from medley.data.loader import Loader as Loader
    from medley.data.sampler import BatchSampler as BatchSampler
    from medley.data.stream import StreamLoader as StreamLoader
    from medley.from_torch import from_torch as from_torch
    from medley.graph import Graph as Graph
    from medley.graph import capture as capture
    from medley.joint import JointTrainer as JointTrainer
    from medley.joint import Objective as Objective
    from medley.lengths import Lengths as Lengths
    from medley.metrics import Metrics as Metrics
    from medley.optimizer import SGD as SGD
    from medley.optimizer import Adadelta as Adadelta
    from medley.optimizer import Adafactor as Adafactor
    from medley.optimizer import Adagrad as Adagrad
    from medley.optimizer import Adam as Adam
    from medley.optimizer import Adamax as Adamax
    from medley.optimizer import AdamW as AdamW
    from medley.optimizer import AdamW8bit as AdamW8bit
    from medley.optimizer import Groups as Groups
    from medley.optimizer import Lion as Lion
    from medley.optimizer import Muon as Muon
    from medley.optimizer import NAdam as NAdam
    from medley.optimizer import RAdam as RAdam
    from medley.optimizer import RMSprop as RMSprop
    from medley.optimizer import Rprop as Rprop
    from medley.plan import Plan as Plan
    from medley.plan import plan as plan
    from medley.schedules import cosine as cosine
    from medley.schedules import inverse_sqrt as inverse_sqrt
    from medley.schedules import linear as linear
    from medley.schedules import polynomial as polynomial
    from medley.schedules import scheduled as scheduled
    from medley.schedules import warmup as warmup
    from medley.schedules import warmup_stable_decay as warmup_stable_decay
    from medley.trainer import Trainer as Trainer

__version__ = "0.1.0"

# Modules are loaded at first use: most verbs of the command line need no PyTorch.
_EXPORTS = {
    "Adafactor": "optimizer",
    "AdamW8bit": "optimizer",
    "Adam": "optimizer",
    "AdamW": "optimizer",
    "Adadelta": "optimizer",
    "Adagrad": "optimizer",
    "Adamax": "optimizer",
    "NAdam": "optimizer",
    "RAdam": "optimizer",
    "RMSprop": "optimizer",
    "Rprop": "optimizer",
    "BatchSampler": "data.sampler",
    "Callback": "callbacks",
    "Cluster": "cluster",
    "Graph": "graph",
    "Groups": "optimizer",
    "JointTrainer": "joint",
    "Lengths": "lengths",
    "Lion": "optimizer",
    "Loader": "data.loader",
    "Metrics": "metrics",
    "Muon": "optimizer",
    "Objective": "joint",
    "Plan": "plan",
    "Progress": "callbacks",
    "SGD": "optimizer",
    "StreamLoader": "data.stream",
    "Trainer": "trainer",
    "capture": "graph",
    "cosine": "schedules",
    "from_torch": "from_torch",
    "inverse_sqrt": "schedules",
    "linear": "schedules",
    "plan": "plan",
    "polynomial": "schedules",
    "scheduled": "schedules",
    "substitute": "capture.draws",
    "warmup": "schedules",
    "warmup_stable_decay": "schedules",
}
__all__ = sorted(_EXPORTS)
_MODULES = ("optimizer",)  # users name functions of these


class _Package(ModuleType):
    """Keeps the functions `capture` and `plan` visible after their submodules are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _EXPORTS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"medley.{name}")
        if name not in _EXPORTS:
            raise AttributeError(f"module 'medley' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"medley.{_EXPORTS[name]}"), name)
        super().__setattr__(name, value)
        return value


sys.modules[__name__].__class__ = _Package
