"""An unchanged model of transformers on two devices that share the rows 7 : 1."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import medley
from medley.cluster import parse_cluster

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: big, count: 1, device: H100-80GB, devices_per_node: 1}
  - {name: small, count: 1, device: T4-16GB, devices_per_node: 1}
networks:
  - {name: lan, connects: [big, small], bandwidth: 25 Gbit/s, latency: 30 us}
"""
PLAN = {
    "format": "medley-plan",
    "version": 1,
    "global_batch": 8,
    "pipelines": [
        {
            "microbatches": [{"rows": 8, "lengths": [7, 1]}],
            "stages": [{"mesh": {"devices": ["big/0/0", "small/0/0"]}}],
        }
    ],
}


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, 256, (8, 32))
    batch = {"input_ids": tokens, "labels": tokens}
    graph = medley.capture(model, batch)
    cluster = parse_cluster(CLUSTER, "cluster.yaml")
    plan = medley.plan(graph, cluster, plan=medley.Plan.from_dict(PLAN))
    trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=3e-3), local=True)
    for _ in range(10):
        metrics = trainer.step(batch)
        print(f"step {metrics.step}: loss {metrics.loss:.3f}")
    trainer.save_model("llama")
    LlamaForCausalLM.from_pretrained("llama")


if __name__ == "__main__":
    main()
