"""A model in bf16 trains with fp32 master weights on unequal devices as on one."""

from __future__ import annotations

import copy

import exactness
import pytest
import torch

import medley
from medley_extras import models

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")

STEPS = 20


def test_bf16_gpt() -> None:
    torch.manual_seed(0)
    model, batch = models.gpt(batch=8)
    model = model.bfloat16()
    start = copy.deepcopy(model.state_dict())
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, exactness.cluster(), "data-parallel-proportional", global_batch=8)
    assert len(plan.devices) == 4
    # Most steps of this size are below half a unit in the last place of a bf16 weight.
    trainer = medley.Trainer(
        model, graph, plan, optimizer=medley.AdamW(lr=3e-4, weight_decay=0), local=True
    )
    losses = [trainer.step(batch).loss for _ in range(STEPS)]
    assert losses[-1] < losses[0] - 0.3, losses
    assert 'state "master:' in trainer.program_text()
    for name, parameter in trainer.parameters().items():
        assert parameter.dtype == torch.bfloat16
        assert not torch.equal(parameter, start[name]), f"{name} did not move"
