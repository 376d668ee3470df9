"""Tensor parallelism with unequal shares, written by hand: three heads on one device, one on the
other. Prints the loss with that of one device, and the traffic."""

import torch

import medley
from medley.cluster import parse_cluster
from medley_extras.models import gpt

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: A100-40GB, devices_per_node: 1}
  - {name: slow, count: 1, device: T4-16GB, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 25 Gbit/s, latency: 30 us}
"""
MEGATRON = {
    "*.attention.qkv.*": "S(0.1, share)",
    "*.attention.out.weight": "S(1, share)",
    "*.mlp.up.*": "S(0, share)",
    "*.mlp.down.weight": "S(1, share)",
}
ROWS = 16


def plan_on(devices: list[str], states: dict[str, str]) -> medley.Plan:
    """Returns a plan of one stage."""
    stage = {"mesh": {"devices": devices}, "placements": states}
    return medley.Plan.from_dict(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "parts": [{"name": "share", "shares": [3, 1]}] if states else [],
            "pipelines": [{"microbatches": [{"rows": ROWS}], "stages": [stage]}],
        }
    )


def main() -> None:
    torch.manual_seed(0)
    model, batch = gpt(batch=ROWS)
    graph = medley.capture(model, batch)
    cluster = parse_cluster(CLUSTER, "cluster.yaml")
    for what, by_hand in {
        "one device": plan_on(["fast/0/0"], {}),
        "3 : 1": plan_on(["fast/0/0", "slow/0/0"], MEGATRON),
    }.items():
        plan = medley.plan(graph, cluster, plan=by_hand)
        trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=3e-3), local=True)
        losses = [trainer.step(batch).loss for _ in range(5)]
        print(what, " ".join(f"{loss:.4f}" for loss in losses))
    explained = plan.explain(expanded=True)
    print(explained[explained.rindex("\ncommunication ") :])


if __name__ == "__main__":
    main()
