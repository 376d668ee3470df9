"""Preferences between two answers, with a frozen reference (as in DPO)."""

import copy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import medley


def logprobs(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logits = model(input_ids=ids).logits[:, :-1]
    chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (chosen * mask[:, 1:]).sum(-1)


def loss_of(model: nn.Module, chosen: Tensor, rejected: Tensor, mask: Tensor) -> Tensor:
    policy, reference = model["policy"], model["reference"]
    with torch.no_grad():
        base = logprobs(reference, chosen, mask) - logprobs(reference, rejected, mask)
    margin = logprobs(policy, chosen, mask) - logprobs(policy, rejected, mask)
    return -F.logsigmoid(0.1 * (margin - base)).mean()


def train(steps: int) -> list[float]:
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        use_cache=False,
    )
    policy = LlamaForCausalLM(config)
    reference = copy.deepcopy(policy).requires_grad_(False)
    model = nn.ModuleDict({"policy": policy, "reference": reference})
    ids = torch.arange(80).view(8, 10) % 61
    example = (ids, ids.flip(0), torch.ones(8, 10))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
    graph = medley.capture(model, example, loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, medley.from_torch(optimizer, model, max_norm=10.0))
    losses = []
    for _ in range(steps):
        chosen, rejected = torch.randint(0, 61, (8, 10)), torch.randint(0, 61, (8, 10))
        mask = (torch.arange(10) >= 3).double().expand(8, -1)
        loss = trainer.step((chosen, rejected, mask)).loss
        losses.append(loss)
    return losses
