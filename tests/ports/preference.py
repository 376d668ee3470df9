"""Preferences between two answers, with a frozen reference (as in DPO)."""

import copy

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM


def logprobs(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    logits = model(input_ids=ids).logits[:, :-1]
    chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (chosen * mask[:, 1:]).sum(-1)


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
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
    losses = []
    for _ in range(steps):
        chosen, rejected = torch.randint(0, 61, (8, 10)), torch.randint(0, 61, (8, 10))
        mask = (torch.arange(10) >= 3).double().expand(8, -1)
        with torch.no_grad():
            base = logprobs(reference, chosen, mask) - logprobs(reference, rejected, mask)
        margin = logprobs(policy, chosen, mask) - logprobs(policy, rejected, mask)
        loss = -F.logsigmoid(0.1 * (margin - base)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
