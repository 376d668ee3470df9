"""Only this machine, in a minute: measure it, plan with the measurement, train, and compare the
predicted step with the real one."""

import argparse
import inspect
import statistics
from pathlib import Path

import torch
from torch import Tensor

import medley
from medley import cli
from medley_extras.models import gpt

ROWS, LENGTH, STEPS = 32, 64, 100


def batches(text: Tensor) -> list[dict[str, Tensor]]:
    """Returns random windows of a text, each with the next character of each of its characters."""
    found = []
    for _ in range(STEPS):
        starts = torch.randint(0, len(text) - LENGTH - 1, (ROWS, 1))
        windows = text[starts + torch.arange(LENGTH + 1)]
        found.append({"input_ids": windows[:, :-1], "labels": windows[:, 1:]})
    return found


def main() -> None:
    torch.manual_seed(0)
    model, example = gpt(positions=LENGTH, width=64, layers=3, batch=ROWS)
    for embedding in (model.tokens, model.positions):
        torch.nn.init.normal_(embedding.weight, std=0.02)
    graph = medley.capture(model, example)
    Path("gpt.graph").write_text(graph.text())

    cli.run(["probe", "-o", "laptop.yaml"])
    files = ["gpt.graph", "laptop.yaml"]
    size, limit = ["--global-batch", str(ROWS)], ["--budget", "15s"]
    cli.run(["profile", *files, *size, *limit, "-o", "profile.json"])
    plan = medley.plan(graph, "laptop.yaml", global_batch=ROWS, profile="profile.json")
    plan.save("plan.json")
    cli.run(["simulate", *files, "plan.json", "--profile", "profile.json"])

    optimizer = medley.AdamW(lr=medley.cosine(3e-3, STEPS, warmup_steps=10))
    trainer = medley.Trainer(model, graph, plan, optimizer, profile="profile.json")
    seconds = []
    text = torch.tensor(list(inspect.getsource(argparse).encode()))
    for batch in batches(text):
        step = trainer.step(batch)
        seconds.append(step.step_seconds)
        if step.step % 25 == 0 or step.step == STEPS - 1:
            print(f"step {step.step}: loss {step.loss:.2f}")
    print(f"a step took {statistics.median(seconds) * 1e3:.3g} ms")
    trainer.save_model("out")


if __name__ == "__main__":
    main()
