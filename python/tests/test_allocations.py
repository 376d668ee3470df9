"""Bytes of live tensors: the counter, and a training step of ours against PyTorch eager."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")

# The count covers the lifetime of the process.
COUNTER = """
import torch
from medley import _runtime

before = torch.ones(1000)
_runtime.count_allocations()
del before  # not counted
a = torch.empty(1 << 20, dtype=torch.uint8)
assert _runtime.allocated_bytes() == (1 << 20, 1 << 20), _runtime.allocated_bytes()
b = torch.empty(1 << 18)
c = b.view(-1, 2)
del a, b
assert _runtime.allocated_bytes() == (1 << 20, 2 << 20), _runtime.allocated_bytes()
_runtime.reset_peak()
del c
assert _runtime.allocated_bytes() == (0, 1 << 20), _runtime.allocated_bytes()
image, weight = torch.ones(2, 3, 16, 16), torch.ones(4, 3, 3, 3, requires_grad=True)
live, _ = _runtime.allocated_bytes()
torch.nn.functional.conv2d(image, weight).sum().backward()
weight.grad = None
assert _runtime.allocated_bytes()[0] == live, "a convolution keeps memory"
"""

STEP = """
import sys
import torch
import medley
from medley import _core, _runtime
from medley.cluster import parse_cluster
from medley_extras.models import hf

torch.manual_seed(0)
_runtime.count_allocations()
model, batch = getattr(hf, sys.argv[1])(batch=8)
if sys.argv[2] == "eager":
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.item()
else:
    graph = medley.capture(model, batch)
    cluster = parse_cluster('''
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 1, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 50 us}
''')
    plan = medley.plan(graph, cluster, "data-parallel-proportional", 8, microbatches=1)
    rule = medley.AdamW(report_norm=False)
    program = _core.Program(graph.core, plan.core, cluster, rule.core(graph.core))
    said = _core.simulate(program, cluster)
    (predicted,) = said["devices"].values()
    trainer = medley.Trainer(
        model,
        graph,
        plan,
        optimizer=rule,
        local=True,
        keep_gradients=False,
    )
    model.to("meta")
    kept = {name: tensor.clone() for name, tensor in batch.items()}

    def step():
        loss = trainer.step(batch).loss
        assert all(torch.equal(batch[name], kept[name]) for name in kept), "the batch changed"
        return loss

for _ in range(2):
    step()
if sys.argv[2] != "eager":
    del kept
    step = lambda: trainer.step(batch).loss
_runtime.reset_peak()
loss = step()
print(_runtime.allocated_bytes()[1], loss)
if sys.argv[2] != "eager":
    print(predicted["peak"])
"""


def _run(script: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_counter() -> None:
    _run(COUNTER)


@pytest.mark.parametrize(
    ("model", "more"), [("gpt2", 0.0), pytest.param("vit", 0.01, marks=pytest.mark.slow)]
)
def test_no_more_than_eager_and_as_predicted(model: str, more: float) -> None:
    eager, eager_loss = _run(STEP, model, "eager")
    ours, our_loss, predicted = _run(STEP, model, "medley")
    assert float(our_loss) == pytest.approx(float(eager_loss), rel=1e-5)
    # Scalars of the program, such as the loss weights.
    assert int(ours) <= (1 + more) * int(eager) + 256
    assert 0.98 < int(predicted) / int(ours) < 1.02
