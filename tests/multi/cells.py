"""Plans that train like one device, as threads and as processes: the cells of test_exactness.py.
`cells.py FOLDER CELL ...` is the command of its processes. Rank 0 writes its results for a cell to
FOLDER/<number of the cell>.pt. FOLDER/<number>.graph, if it exists, replaces a capture."""

from __future__ import annotations

import atexit
import dataclasses
import fnmatch
import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import medley
from medley import _testing
from medley.capture.batch import map_named
from medley.cluster import parse_cluster
from medley.data.pictures import pictures_of
from medley.data.row_dim import row_dim
from medley_extras import models

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import exactness
import row_models
import test_hand_written_plans as one_axis
import test_pipelines as pipelines
import test_two_axes as two_axes
import vision_models
from zoo import ZOO

LEARNING_RATE = 1e-3
MODELS = {
    **ZOO,
    **row_models.MODELS,
    **{
        name: functools.partial(lambda made, batch: made([1, 0, 2, 0, 1, 2][:batch]), made)
        for name, made in vision_models.MODELS.items()
    },
    # Wide enough that stages do not recompute received values.
    "wide mlp": functools.partial(models.mlp, inputs=128, width=128, layers=4, outputs=8),
}


_graphs: dict[tuple[str, tuple[str, ...], int], medley.Graph] = {}
atexit.register(_graphs.clear)  # runs before bindings count remaining objects


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model, its plan, and its number of training steps."""

    model: str  # one of MODELS
    devices: int
    plan: Callable[[medley.Graph], str]
    frozen: tuple[str, ...] = ()  # names of parameters that are not trained
    rows: int = 6
    steps: int = 3
    clip: float = 1.0

    def make(self, file: Path | None = None) -> tuple[nn.Module, Any, medley.Graph, str]:
        """Returns model, global batch, graph and plan, the same in every process. Called in
        double_precision(). A process captures each model once, or reads it from a file."""
        torch.manual_seed(0)
        model, batch = MODELS[self.model](batch=self.rows)
        for name, parameter in model.named_parameters():
            if any(fnmatch.fnmatch(name, pattern) for pattern in self.frozen):
                parameter.requires_grad_(False)
        model, batch = model.double(), exactness.to_double(batch)
        key = self.model, self.frozen, self.rows
        if key not in _graphs:
            is_there = file is not None and file.exists()
            _graphs[key] = medley.Graph.load(file) if is_there else medley.capture(model, batch)
        return model, batch, _graphs[key], self.plan(_graphs[key])


def of_one_axis(case: one_axis.Case) -> Cell:
    """Returns the cell of a plan written by hand."""
    plan = one_axis.plan_of(case)
    return Cell(case.model, len(case.shares), lambda _: plan, clip=0.1)


def of_two_axes(case: two_axes.Case) -> Cell:
    """Returns the cell of a plan on a mesh of two axes."""
    plan = two_axes.plan_of(case)
    return Cell(case.model, math.prod(case.shape), lambda _: plan, clip=0.1)


def of_pipeline(case: pipelines.Case, *frozen: str) -> Cell:
    """Returns the cell of a plan of several stages."""
    return Cell(case.model, sum(case.sizes), lambda graph: pipelines.plan_of(case, graph), frozen)


def of_random_plan(model: str, seed: int) -> Cell:
    """Returns the cell of a plan drawn at random."""
    devices = 2 + seed % 3
    draw = functools.partial(exactness.random_plan, seed=seed, rows=5, devices=devices)
    return Cell(model, devices, draw, rows=5, steps=2, clip=0.0)


def of_random_pipeline(model: str, seed: int) -> Cell:
    """Returns the cell of a pipeline drawn at random."""
    devices = 2 + seed % 3
    names = [f"a/{i}/0" for i in range(devices)]

    def draw(graph: medley.Graph) -> str:
        return _testing.random_pipeline(graph.core.text(), names, 6, seed)

    return Cell(model, devices, draw, steps=2, clip=0.0)


def of_random_pipelines(model: str, seed: int, devices: int) -> Cell:
    """Returns the cell of several pipelines drawn at random."""
    names = [f"a/{i}/0" for i in range(devices)]

    def draw(graph: medley.Graph) -> str:
        return _testing.random_pipelines(graph.core.text(), names, 6, seed)

    return Cell(model, devices, draw, steps=2, clip=0.1)


# The best pipeline has a stage on two device types.
TWO_KINDS = """
format: medley-cluster
version: 1
nodes:
  - {{name: a, count: 1, device: fast, devices_per_node: 1}}
  - {{name: b, count: 1, device: slow, devices_per_node: 1}}
  - {{name: c, count: 2, device: other, devices_per_node: 1}}
networks:
  - {{name: near, connects: [a, b], bandwidth: 100 TB/s, latency: 0 us}}
  - {{name: lan, connects: [a, b, c], bandwidth: {bandwidth}, latency: 1 us}}
devices:
  fast: {{based_on: CPU, launch_latency: 1 ns, memory: 8 GiB}}
  slow: {{based_on: CPU, speed: 0.5, launch_latency: 1 ns, memory: 8 GiB}}
  other: {{based_on: CPU, speed: 0.75, launch_latency: 1 ns, memory: 8 GiB}}
"""


def of_two_kinds(model: str, bandwidth: str) -> Cell:
    """Returns the cell of a pipeline found for TWO_KINDS, on as many devices of one type."""

    def find(graph: medley.Graph) -> str:
        cluster = parse_cluster(TWO_KINDS.format(bandwidth=bandwidth))
        found = medley.plan(graph, cluster, strategy="harp", global_batch=8, microbatches=2)
        plan = found.to_dict()
        del plan["cluster_hash"]
        (pipeline,) = plan["pipelines"]
        kinds = [{name[0] for name in stage["mesh"]["devices"]} for stage in pipeline["stages"]]
        assert max(map(len, kinds)) == 2 and len(kinds) == 2
        names = iter(f"a/{device}/0" for device in range(4))
        for stage in pipeline["stages"]:
            stage["mesh"]["devices"] = [next(names) for _ in stage["mesh"]["devices"]]
        return json.dumps(plan)

    return Cell(model, 4, find, rows=8)


def of_rows(model: str) -> Cell:
    """Returns the cell of two micro-batches of different sizes, for a model whose rows are not dim
    0."""
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": 6,
        "pipelines": [
            {
                "microbatches": [
                    {"rows": 4, "lengths": [1, 0, 2, 1]},
                    {"rows": 2, "lengths": [0, 1, 1, 0]},
                ],
                "stages": [{"mesh": {"devices": [f"a/{device}/0" for device in range(4)]}}],
            }
        ],
    }
    return Cell(model, 4, lambda _: json.dumps(plan))


# Four devices each: one start of processes serves all.
MATRIX = {
    "one axis": of_one_axis(
        one_axis.Case("gpt", {"placements": one_axis.MEGATRON_GPT}, [3, 2, 1, 1], [2, 1, 2, 1])
    ),
    "two at once": of_one_axis(
        one_axis.Case(
            "gpt", {"placements": one_axis.MEGATRON_GPT}, [3, 2, 1, 1], [2, 1, 2, 1], interleave=2
        )
    ),
    "two axes": of_two_axes(two_axes.CASES["rows between nodes, tensors inside"]),
    "ZeRO": of_one_axis(
        one_axis.Case("gpt", {"placements": {"*": "S(0, part)"}}, [2, 1, 0, 1], [3, 1, 0, 2])
    ),
    "two stages": of_pipeline(pipelines.CASES["two and two, other rows"]),
    "three stages": of_pipeline(pipelines.CASES["three stages"]),
    "a frozen stage": of_pipeline(
        pipelines.Case("wide mlp", (1, 2, 1), ((), (2, 1), ())), "layers.0.*", "layers.1.*"
    ),
    "tied ends": of_pipeline(pipelines.Case("gpt", (1, 1, 2), ((), (), (2, 1)))),
    "zero shares": of_pipeline(pipelines.CASES["a device without rows"]),
    "several pipelines": of_random_pipelines("gpt", 1, 4),
    "owners": of_random_pipelines("gpt", 2, 4),
    "two kinds in the first stage": of_two_kinds("gpt", "30 GB/s"),
    "two kinds in the last stage": of_two_kinds("gpt", "100 GB/s"),
    **{f"rows of {model}": of_rows(model) for model in ("positions", "features", "llava")},
}
# Cells of processes that only the nightly run starts.
MORE = {
    **{f"rows of {model}": of_rows(model) for model in ("idefics3", "qwen2_vl", "qwen2_5_vl")},
    **{f"one axis: {name}": of_one_axis(case) for name, case in one_axis.CASES.items()},
    **{f"two axes: {name}": of_two_axes(case) for name, case in two_axes.CASES.items()},
    **{f"pipeline: {name}": of_pipeline(case) for name, case in pipelines.CASES.items()},
    **{f"random: {model} {i}": of_random_plan(model, i) for model in ZOO for i in range(3)},
    **{
        f"random pipeline: {model} {i}": of_random_pipeline(model, i)
        for model in pipelines.RANDOM
        for i in range(3)
    },
    **{
        f"several pipelines: {model} {i}": of_random_pipelines(model, i, 2 + i)
        for model in pipelines.RANDOM
        for i in range(3)
    },
}
CELLS = {**MATRIX, **MORE}
NUMBERS = {name: number for number, name in enumerate(CELLS)}


def own_rows(plan: medley.Plan, model: nn.Module, batch: Any, rows: int) -> Any:
    """Returns the rows of this process, as BatchSampler chooses them."""
    (mine,) = medley.BatchSampler(plan, range(rows))
    assert plan.graph is not None
    shapes = {name: shape for kind, name, _, shape in plan.graph.core.inputs if kind == "batch"}

    def own(name: str, value: Any) -> Any:
        dim = row_dim(shapes.get(name, ""))
        return value if dim is None else dim.at(value, mine)

    pictures = pictures_of(model)
    if pictures is None:
        return map_named(batch, own)
    pictures = pictures.of(batch)
    return pictures.stripped(map_named(pictures.padded(batch, {}), own))


def train(cell: Cell, file: Path) -> exactness.Curve:
    """Trains as one of the processes of a job, with the global batch and its own rows in turn."""
    model, batch, graph, text = cell.make(file)
    machines = exactness.cluster(max(4, cell.devices))
    plan = medley.plan(graph, machines, plan=medley.Plan.from_dict(json.loads(text)))
    optimizer = medley.AdamW(lr=LEARNING_RATE, weight_decay=0.01, max_norm=cell.clip or None)
    trainer = medley.Trainer(model, graph, plan, optimizer=optimizer)
    losses = [
        trainer.step(own_rows(plan, model, batch, cell.rows) if step % 2 else batch).loss
        for step in range(cell.steps)
    ]
    curve = exactness.Curve(losses, trainer.gradients(), trainer.parameters())
    trainer.finish()
    return curve


def main(folder: Path, names: list[str]) -> None:
    """Trains each of the cells."""
    torch.set_num_threads(1)
    for name in names:
        with exactness.double_precision():
            curve = train(CELLS[name], folder / f"{NUMBERS[name]}.graph")
        if torch.distributed.get_rank() == 0:
            torch.save(vars(curve), folder / f"{NUMBERS[name]}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
