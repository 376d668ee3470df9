"""The processes of these tests: `train.py FOLDER MODEL [STEPS]`. FOLDER has cluster.yaml and
plan.json. MODEL.graph, if it exists, replaces a capture. Rank 0 writes its results to
FOLDER/seen.json."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import medley
from medley_extras import models
from medley_extras.models import hf

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
from exactness import double_precision

MODELS = {"gpt": models.gpt, "llama": hf.llama, "bert": hf.bert}
ROWS = 8


def make(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a model in fp64 and a global batch, the same everywhere."""
    torch.manual_seed(0)
    with double_precision():
        return MODELS[name](batch=ROWS)


def own_rows(plan: medley.Plan, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the rows of this process, as BatchSampler chooses them."""
    (rows,) = medley.BatchSampler(plan, range(ROWS))
    return {name: value[rows] for name, value in batch.items()}


def main(folder: Path, name: str, steps: int) -> None:
    """Trains, with the additions of the environment."""
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    model, batch = make(name)
    if rank > 0:  # the first process's values count
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        if "OTHER_ORDER" in os.environ:
            batch = {key: value.flip(0) for key, value in batch.items()}
    if (folder / f"{name}.graph").exists():
        graph = medley.Graph.load(folder / f"{name}.graph")
    else:
        with double_precision():
            graph = medley.capture(model, batch)
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    beta = 0.8 if "OTHER_BETA" in os.environ and rank > 0 else 0.9
    optimizer = medley.AdamW(lr=1e-3, betas=(beta, 0.999))
    trainer = medley.Trainer(model, graph, plan, optimizer=optimizer, seed=3)
    seen: dict[str, Any] = {"loss": [], "norm": [], "seconds": []}
    for step in range(steps):
        metrics = trainer.step(own_rows(plan, batch) if step % 2 else batch)
        seen["loss"].append(metrics.loss)
        seen["norm"].append(metrics.grad_norm)
        seen["seconds"].append(metrics.step_seconds)
        print(f"step {step} pid {os.getpid()}", flush=True)
        if "DIE_AT" in os.environ and rank == 1 and step == int(os.environ["DIE_AT"]):
            os.kill(os.getpid(), 9)
        if "SLOWLY" in os.environ:
            time.sleep(0.05)
    trainer.save_model(folder / "model")
    if rank == 0:
        (folder / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 5)
    finally:  # is not reached by a process that is killed
        print(f"ended pid {os.getpid()}", flush=True)
