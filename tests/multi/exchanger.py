"""The processes of test_exchanges.py: `exchanger.py FOLDER CALL END`. Two stages of one pipeline,
or in the call `joint` two objectives. The second process ends after a step as END describes:
`finishes`, `is killed`, `raises`. The first one makes the call, which needs both."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import medley
from medley.run import exchange


class Net(nn.Module):
    """Two layers, one for each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh()).square().mean()


def make(adapted: bool = False) -> nn.Module:
    """Returns the model, the same in each process."""
    torch.manual_seed(0)
    if not adapted:
        return Net()
    import peft

    return peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["a"]))  # type: ignore[no-any-return]


X = torch.ones(4, 6)
CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "step": lambda trainer, folder: trainer.step(X),
    "step of fewer rows": lambda trainer, folder: trainer.step(X[:3]),
    "evaluate": lambda trainer, folder: trainer.evaluate(X),
    "save": lambda trainer, folder: trainer.save(folder / "run"),
    "parameters": lambda trainer, folder: trainer.parameters(),
    "optimizer state": lambda trainer, folder: trainer.optimizer_state_dict(),
    "averages": lambda trainer, folder: trainer.averages(),
    "gradients": lambda trainer, folder: trainer.gradients(),
    "save_model": lambda trainer, folder: trainer.save_model(folder / "model"),
    "save_adapter": lambda trainer, folder: trainer.save_adapter(folder / "adapter"),
    "joint": lambda trainer, folder: trainer.step("two", X),
    "joint, parameters": lambda trainer, folder: trainer.parameters(),
    "capture": lambda trainer, folder: medley.capture(make(), X, check=False),
    "texts": lambda trainer, folder: exchange.texts("mine"),
}

# The names of the calls in messages.
NAMES = {name: name for name in ("step", "evaluate", "save", "parameters", "averages", "gradients")}
NAMES |= {"step of fewer rows": "step", "optimizer state": "optimizer_state_dict"}


def end(how: str) -> None:
    """Ends this process."""
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises":
        raise RuntimeError("my data is broken")


def main(folder: Path, call: str, how: str) -> None:
    """Trains a step."""
    torch.set_num_threads(1)
    model = make(call == "save_adapter")
    name = "adapted.graph" if call == "save_adapter" else "model.graph"
    graph = medley.Graph.load(folder / name)
    plan = medley.Plan.load(folder / name.replace("graph", "json"))
    optimizer = medley.SGD(lr=0.1, momentum=0.9, average=0.9)
    trainer: Any
    if call.startswith("joint"):
        each = medley.Objective(graph, plan, optimizer)
        trainer = medley.JointTrainer(
            model, {"one": each, "two": each}, cluster=folder / "cluster.yaml"
        )
        trainer.step("one", X)
    else:
        trainer = medley.Trainer(model, graph, plan, optimizer, cluster=folder / "cluster.yaml")
        trainer.step(X)
    if os.environ["RANK"] == os.environ.get("TROUBLED", "1"):
        return end(how)
    CALLS[call](trainer, folder)
    trainer.finish()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
