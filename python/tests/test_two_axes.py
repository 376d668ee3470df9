"""2-D meshes: different divisions between nodes and within them, in one plan."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import exactness
import pytest
import torch
from test_hand_written_plans import MEGATRON_GPT
from test_pipelines import cuts
from zoo import ZOO

ROWS = exactness.ROWS
DEVICES = [f"a/{i}/0" for i in range(6)]


def inner(states: dict[str, str], outer: str = "R") -> dict[str, str]:
    """Returns states of axis 1, on axis 0 as `outer`."""
    return {name: f"{outer} x {state}" for name, state in states.items()}


@dataclasses.dataclass(frozen=True)
class Case:
    """A plan on a mesh, its model, and words of its communications that must or must not occur."""

    model: str
    stage: dict[str, Any]
    shape: tuple[int, int] = (2, 2)
    rows: tuple[int, ...] | None = (4, 2)
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


CASES = {
    "rows between nodes, tensors inside": Case(
        "gpt",
        {"placements": inner(MEGATRON_GPT)},
        has=("all_reduce gradients",),
        lacks=("all_gather", "all_to_all"),
    ),
    "the other way round": Case(
        "gpt",
        {
            "placements": {name: f"{state} x R" for name, state in MEGATRON_GPT.items()},
            "batch": {"*": "R x S(0, even)"},
        },
        rows=None,
    ),
    "rows on both axes": Case(
        "gpt",
        {"batch": {"*": "S(0, rows) x S(0, part)"}},
        has=("all_reduce gradients",),
        lacks=("all_gather", "all_to_all", "reduce_scatter"),
    ),
    "ZeRO between nodes, tensors inside": Case(
        "gpt",
        {"placements": inner(MEGATRON_GPT), "updates": {"*.mlp.*": "S(0, even) x R", "*": "R x R"}},
        has=("reduce_scatter accumulate/",),
    ),
    "ZeRO-3 over all devices": Case(
        "bert",
        {
            "placements": {"*": "S(0, outer) x S(0, part)"},
            "batch": {"*": "S(0, rows) x S(0, even)"},
        },
        has=("reduce_scatter accumulate/", "all_gather"),
    ),
    "two dims of a weight": Case(
        "llama",
        {
            "placements": {
                "*.up.weight": "S(1, outer) x S(0, part)",
                "*.down.weight": "S(0, even) x R",
            }
        },
        rows=None,
    ),
    "experts between nodes, rows inside": Case(
        "bert-moe",
        {
            "placements": {
                "*.experts.up": "S(0, outer) x R",
                "*.experts.down": "S(0, outer) x R",
            },
            "ops": {
                "*.experts/bmm#1": "b outer x replicate",
                "*.experts/bmm#2": "b outer x replicate",
            },
        },
    ),
    "vocabulary inside": Case(
        "gpt", {"placements": {"tokens.weight": "R x S(0, part)"}}, has=("_log_softmax",)
    ),
    "sequences inside, rows as they come": Case(
        "gpt",
        {"placements": inner(MEGATRON_GPT), "ops": {"*/native_layer_norm#0": "* x d1 part"}},
        has=("reduce_scatter", "all_gather"),
    ),
    "an axis of one device": Case("gpt", {"placements": inner(MEGATRON_GPT)}, (1, 2), (6,)),
    "channels and rows": Case(
        "vgg", {"placements": {"features.*.weight": "R x S(0, part)"}}, rows=(5, 1)
    ),
}


def plan_of(case: Case) -> str:
    """Returns the plan as JSON."""
    count = case.shape[0] * case.shape[1]
    microbatch: dict[str, Any] = {"rows": ROWS}
    if case.rows:
        microbatch["lengths"] = case.rows
    mesh = {"axes": ["node", "device"], "shape": case.shape, "devices": DEVICES[:count]}
    return json.dumps(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "parts": [
                {"name": "part", "shares": [3, 1][: case.shape[1]]},
                {"name": "outer", "shares": [1, 2][: case.shape[0]]},
            ],
            "pipelines": [{"microbatches": [microbatch], "stages": [{"mesh": mesh, **case.stage}]}],
        }
    )


@pytest.mark.parametrize("name", CASES)
def test_trains_like_one_device(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[case.model], ROWS)
        plan = plan_of(case)
        exactness.check_communications(graph, plan, case.has, case.lacks)
        exactness.check(model, batch, graph, plan, 5, clip=0.1, name=case.model)


# As planners find them for a stage on several nodes: both axes divide one op, and only the first
# axis divides the input from the other stage by rows.
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_a_stage_of_a_pipeline_trains_like_one_device(model: str, first: bool) -> None:
    wide = Case(
        model,
        {
            "placements": {"*": "S(0, outer) x S(0, part)"},
            "ops": {"*.mlp.*/contract#0": "d0 rows x n part"},
        },
    )
    torch.manual_seed(0)
    with exactness.double_precision():
        model_, batch, graph = exactness.captured(ZOO[model], ROWS)
        plan = json.loads(plan_of(wide))
        pipeline = plan["pipelines"][0]
        stages = [pipeline["stages"][0], {"mesh": {"devices": ["a/4/0"]}}]
        if not first:
            stages.reverse()
            stages[1]["rows"] = [2, 1]
        stages[1]["first"] = cuts(graph, 2)[0]
        pipeline["stages"] = stages
        rows = {"rows": 3, "lengths": [2, 1]} if first else {"rows": 3}
        pipeline["microbatches"] = [rows, rows]
        exactness.check(model_, batch, graph, json.dumps(plan), 3, clip=0.1, name=model)
