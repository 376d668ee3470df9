"""Every form of parallelism is a few lines of placements, with unequal shards and no code of its
own."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import exactness
import pytest
import torch
from zoo import ZOO

import medley
from medley import _core
from medley.cluster import parse_cluster

ROWS = exactness.ROWS
STEPS = 50


@dataclasses.dataclass(frozen=True)
class Case:
    """A plan, its model, and words of its communications that must or must not occur."""

    model: str
    stage: dict[str, Any]
    shares: list[float]
    rows: list[int] | None = None  # by device; None: the batch is replicated
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    steps: int = STEPS
    interleave: int = 1  # micro-batches, of three
    parts: int = 1  # micro-batches without interleaving


MEGATRON_GPT = {
    "*.attention.qkv.*": "S(0.1, part)",
    "*.attention.out.weight": "S(1, part)",
    "*.mlp.up.*": "S(0, part)",
    "*.mlp.down.weight": "S(1, part)",
}
MEGATRON_GPT2 = {
    "*.attn.c_attn.weight": "S(1.1, part)",
    "*.attn.c_attn.bias": "S(0.1, part)",
    "*.attn.c_proj.weight": "S(0, part)",
    "*.mlp.c_fc.weight": "S(1, part)",
    "*.mlp.c_fc.bias": "S(0, part)",
    "*.mlp.c_proj.weight": "S(0, part)",
}
CASES = {
    "megatron": Case(
        "gpt", {"placements": MEGATRON_GPT}, [3, 1], lacks=("all_gather", "all_to_all")
    ),
    "megatron, fused QKV of GPT-2": Case(
        "hf-gpt2", {"placements": MEGATRON_GPT2}, [2, 1, 1], lacks=("all_gather", "all_to_all")
    ),
    "megatron, grouped queries": Case(
        "llama",
        {
            "placements": {
                "*.q.weight": "S(0, part)",
                "*.k.weight": "S(0, part)",
                "*.v.weight": "S(0, part)",
                "*.attention.out.weight": "S(1, part)",
            }
        },
        [1, 0, 1],
    ),
    "vocabulary": Case(
        "gpt", {"placements": {"tokens.weight": "S(0, part)"}}, [5, 2, 3], has=("_log_softmax",)
    ),
    "vocabulary, masked LM": Case(
        "bert", {"placements": {"tokens.weight": "S(0, part)"}}, [5, 0, 3], has=("_log_softmax",)
    ),
    "sequence-sharded layer norm": Case(
        "gpt",
        {"placements": MEGATRON_GPT, "ops": {"*/native_layer_norm#0": "d1 part"}},
        [3, 1],
        has=("reduce_scatter", "all_gather"),
    ),
    "ZeRO-1": Case(
        "gpt",
        {"updates": {"*": "S(0, part)"}},
        [2, 1, 1],
        rows=[3, 1, 2],
        has=("reduce_scatter accumulate/", "all_gather update/"),
        lacks=("all_reduce gradients",),
    ),
    "ZeRO-3": Case(
        "gpt",
        {"placements": {"*": "S(0, part)"}},
        [2, 1, 1],
        rows=[3, 1, 2],
        has=("reduce_scatter accumulate/", "all_gather blocks.0.attention.qkv.weight"),
        lacks=("all_gather update/",),
    ),
    "ZeRO-3, gradients in shards": Case(
        "gpt",
        {
            "placements": {"*": "S(0, part)"},
            "ops": {"accumulate/*.weight": "d0 part", "accumulate/*.bias": "d0 part"},
        },
        [2, 1, 1],
        rows=[3, 1, 2],
        has=("reduce_scatter blocks.0.attention.out/~", "all_gather blocks.0.attention.out.weight"),
        lacks=("reduce_scatter accumulate/", "all_gather update/"),
        parts=3,
    ),
    "experts with capacity": Case(
        "bert-moe",
        {
            "placements": {"*.experts.up": "S(0, part)", "*.experts.down": "S(0, part)"},
            "ops": {"*.experts/bmm#1": "b part", "*.experts/bmm#2": "b part"},
        },
        [3, 0, 1],
        rows=[3, 1, 2],
        has=("all_to_all",),
        lacks=("all_gather layers.1.experts.up", "all_gather layers.1.experts.down"),
    ),
    "routed experts": Case(
        "hf-mixtral",
        {
            "placements": {
                "*.experts.gate_up_proj": "S(0, part)",
                "*.experts.down_proj": "S(0, part)",
            },
            "ops": {"*.experts/experts#0": "x part"},
        },
        [3, 0, 2],
        rows=[3, 1, 2],
        has=("reduce_scatter model.layers.0/add#1",),
        lacks=("all_gather model.layers.0.mlp.experts.",),
        steps=10,
    ),
    "hidden width of experts": Case(
        "hf-qwen3-moe",
        {
            "placements": {
                "*.experts.gate_up_proj": "S(1.1, part)",
                "*.experts.down_proj": "S(2, part)",
            }
        },
        [2, 0, 1],
        lacks=("all_gather",),
        steps=10,
    ),
    "megatron, two at once": Case(
        "gpt", {"placements": MEGATRON_GPT}, [3, 1], interleave=2, steps=10
    ),
    "experts with capacity, three at once": Case(
        "bert-moe",
        {
            "placements": {"*.experts.up": "S(0, part)", "*.experts.down": "S(0, part)"},
            "ops": {"*.experts/bmm#1": "b part", "*.experts/bmm#2": "b part"},
            "recompute": "blocks",
        },
        [3, 0, 1],
        rows=[3, 1, 2],
        has=("all_to_all",),
        interleave=3,
        steps=10,
    ),
    "convolution channels": Case(
        "vgg", {"placements": {"features.*.weight": "S(0, part)"}}, [2, 1, 1]
    ),
    "mixed": Case(
        "vit",
        {
            "placements": {"*.mlp.*.weight": "S(0, part)"},
            "updates": {"*.mlp.*.weight": "S(1, even)"},
        },
        [1, 2],
        rows=[5, 1],
    ),
}


def plan_of(case: Case) -> str:
    """Returns the plan as JSON."""
    count = len(case.shares)
    parts = 3 if case.interleave > 1 else case.parts
    microbatches: list[dict[str, Any]] = [{"rows": ROWS // parts} for _ in range(parts)]
    if case.rows:
        owners = [device for device, rows in enumerate(case.rows) for _ in range(rows)]
        for i, microbatch in enumerate(microbatches):
            own = owners[i::parts]
            microbatch["lengths"] = [own.count(device) for device in range(count)]
    pipeline: dict[str, Any] = {"microbatches": microbatches}
    if case.interleave > 1:
        pipeline["interleave"] = case.interleave
    mesh = {"axes": ["x"], "shape": [count], "devices": [f"a/{i}/0" for i in range(count)]}
    return json.dumps(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "parts": [{"name": "part", "shares": case.shares}],
            "pipelines": [{**pipeline, "stages": [{"mesh": mesh, **case.stage}]}],
        }
    )


# A wrong gradient or update shows after one step or two. Fifty run nightly.
@pytest.mark.parametrize("steps", [5, pytest.param(STEPS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_trains_like_one_device(name: str, steps: int) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[case.model], ROWS)
        plan = plan_of(case)
        exactness.check_communications(graph, plan, case.has, case.lacks)
        exactness.check(
            model, batch, graph, plan, min(steps, case.steps), clip=0.1, name=case.model
        )


def test_megatron_reduces_twice_a_block_and_phase() -> None:
    with exactness.double_precision():
        graph = medley.capture(*ZOO["gpt"](batch=ROWS))
    names = _core.communications(
        graph.core, _core.Plan(plan_of(CASES["megatron"])), exactness.cluster()
    )
    forward = [name for name in names if "/add#" in name]
    backward = [name for name in names if "/~" in name]
    assert len(forward) == 4, names  # two blocks
    assert len(backward) == 3, names  # the first block's input gradient only feeds the embedding


def test_gradients_in_shards_hold_less_between_microbatches() -> None:
    case = CASES["ZeRO-3, gradients in shards"]
    whole = dataclasses.replace(case, stage={"placements": case.stage["placements"]})
    with exactness.double_precision():
        graph = medley.capture(*ZOO["gpt"](batch=ROWS))
    for device in range(len(case.shares)):
        (persistent, peak, _), (same, more, _) = (
            _core.memory_use(graph.core, _core.Plan(plan_of(each)), exactness.cluster(), device)
            for each in (case, whole)
        )
        assert persistent == same
        assert peak < more


# Memory for the shards of weights, but not for whole gradients until the update: the search keeps
# gradients in shards, too, and the plan trains like one device.
def test_a_plan_that_fits_only_with_gradients_in_shards_trains_like_one_device() -> None:
    limit = 2_400_000
    text = exactness.CLUSTER.replace("COUNT", "3").replace("device: CPU", "device: small")
    text = text.replace("10 Gbit/s", "300 GB/s").replace("50 us", "1 us")
    cluster = parse_cluster(f"{text}devices:\n  small: {{based_on: CPU, memory: {limit} B}}\n")

    def peak(entries: dict[str, Any]) -> int:
        plan = _core.Plan(json.dumps(entries))
        return max(_core.memory_use(graph.core, plan, cluster, device)[1] for device in range(3))

    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["gpt"], ROWS)
        found = medley.plan(graph, cluster, "hap", global_batch=ROWS, microbatches=2)
        entries = json.loads(found.text)
        del entries["cluster_hash"]  # covers the memory, which check() does not use
        assert peak(entries) <= limit
        exactness.check(model, batch, graph, json.dumps(entries), 5, clip=0.1, name="gpt")
        ops = entries["pipelines"][0]["stages"][0]["ops"]
        ops.update({name: "*" for name in ops if name.startswith("accumulate/")})
        assert peak(entries) > limit
