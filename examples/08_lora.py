"""LoRA on two different GPUs. A copy of the model on each does not fit, so the plan cuts it by
layers and gives the larger and faster GPU more of them. The adapter is saved in peft's format.

The GPUs are emulated. The ratio of their speeds is that of a 16 GB GPU to a 24 GB GPU, and their
memory is as small for this model as it is for one of 8 billion parameters. For your own run, use
your model, name your GPUs in a cluster file (such as `two_cards.yaml`; `medley list devices`), and
leave out `emulated`.
"""

import peft
import torch

import medley
from medley.cluster import parse_cluster
from medley.run import job
from medley_extras.models import hf

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: old, count: 1, device: sixteen, devices_per_node: 1}
  - {name: new, count: 1, device: twenty-four, devices_per_node: 1}
networks:
  - {name: lan, connects: [old, new], bandwidth: 100 Mbit/s, latency: 30 us}
devices:
  sixteen:
    sustained: {f32: 4 Gflop/s}
    memory: 8.6 MiB
    memory_bandwidth: 2 GB/s
    launch_latency: 2 us
  twenty-four:
    sustained: {f32: 6.4 Gflop/s}
    memory: 13.1 MiB
    memory_bandwidth: 6 GB/s
    launch_latency: 2 us
"""
ROWS = 16
SIZES = {"num_hidden_layers": 8, "hidden_size": 128, "intermediate_size": 448, "vocab_size": 1024}


def main() -> None:
    torch.manual_seed(0)
    base, batch = hf.llama(batch=ROWS, tokens=64, **SIZES)
    start = {name: value.clone() for name, value in base.state_dict().items()}
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    graph = medley.capture(model, batch)
    cluster = parse_cluster(CLUSTER, "cluster.yaml")
    try:
        medley.plan(graph, cluster, "data-parallel-proportional", global_batch=ROWS)
    except ValueError as error:
        print(f"A copy on each card: {error}\n")
    plan = medley.plan(graph, cluster, global_batch=ROWS)
    print(plan.explain())

    with job.emulated():
        trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=1e-2), local=True)
    for _ in range(4):
        step = trainer.step(batch)
        print(f"step {step.step}: {step.step_seconds:.2f} s, loss {step.loss:.4f}")
    trainer.save_adapter("adapter")

    base, _ = hf.llama(**SIZES)
    base.load_state_dict(start)
    again = peft.PeftModel.from_pretrained(base, "adapter")
    with torch.no_grad():
        found = again(**batch).loss.item()
    expected = trainer.step(batch).loss  # loss at the weights before the step
    print(f"read by peft, the adapter has loss {found:.4f}; here {expected:.4f}")
    assert abs(found - expected) < 1e-4 * expected


if __name__ == "__main__":
    main()
