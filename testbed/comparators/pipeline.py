"""torch.distributed.pipelining, 1F1B: one stage per process, cut by hand into so many blocks each.

The loss of a micro-batch is its sum over the number of labels of the whole batch, so that gradients
add up to those of the global mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from medley.models.gpt import GPT
from testbed.comparators import process, rows, timing, workloads


class Part(nn.Module):
    """Some blocks of a GPT; the first part has the embeddings, the last one the head."""

    def __init__(self, model: GPT, first: int, last: int) -> None:
        super().__init__()
        self.tokens = model.tokens if first == 0 else None
        self.positions = model.positions if first == 0 else None
        self.blocks = nn.ModuleList(list(model.blocks)[first:last])
        ends = last == len(model.blocks)
        self.norm = model.norm if ends else None
        self.head = model.head if ends else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens i64 [b, s] in the first part, logits out of the last, [b, s, width] between."""
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """Returns what is divided. Raises ValueError if the model is none that can be cut here."""
    if not isinstance(model, GPT) or model.head.weight is model.tokens.weight:
        raise ValueError("pipeline: found another model, expected a GPT whose head is not tied")
    return model.blocks


def even(blocks: int, stages: int) -> list[int]:
    """Returns how many blocks each stage has: as equal as can be, the first ones more."""
    return [blocks // stages + (stage < blocks % stages) for stage in range(stages)]


def cut(model: nn.Module, blocks: Sequence[int] | None, stages: int, stage: int) -> Part:
    """Returns a stage of a model, each of so many blocks; without, they are even.

    Raises ValueError if they do not make the model.
    """
    whole = len(blocks_of(model))
    counts = blocks or even(whole, stages)
    if len(counts) != stages or sum(counts) != whole or min(counts) < 1:
        raise ValueError(
            f"--blocks: found {' '.join(map(str, counts))}, expected {stages} numbers, one for "
            f"each stage, that add up to {whole}, the blocks of the model"
        )
    assert isinstance(model, GPT)
    return Part(model, sum(counts[:stage]), sum(counts[: stage + 1]))


def main() -> None:
    """Trains as one process of a job."""
    parser = process.parser(
        __doc__,
        workload="a GPT: gpt or gpt?rows=96",
        cluster="is not read: the order of stages is that of the ranks",
    )
    parser.add_argument("--blocks", type=int, nargs="+", help="of each stage; default: even")
    parser.add_argument("--microbatches", type=int, default=8)
    options = parser.parse_args()

    rank, size = process.begin()
    model, example = workloads.load(options.workload)
    batch = len(example["labels"])
    if batch % options.microbatches or options.microbatches < size:
        raise ValueError(
            f"--microbatches: found {options.microbatches}, expected at least {size}, the stages, "
            f"and a divisor of {batch}, the rows"
        )
    part = cut(model, options.blocks, size, rank)
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    labels = 1  # that count, in the batch at hand

    def loss_of(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / labels

    schedule = Schedule1F1B(stage, options.microbatches, loss_of, scale_grads=False)
    optimizer = torch.optim.AdamW(
        part.parameters(), lr=workloads.LEARNING_RATE, weight_decay=0.01, fused=True
    )
    data = workloads.batches(example, 4)

    def step(number: int) -> float:
        nonlocal labels
        whole = data[number % len(data)]
        labels = rows.counted(whole["labels"])
        optimizer.zero_grad(set_to_none=False)
        losses: list[Tensor] = []
        inputs = (whole["input_ids"],) if rank == 0 else ()
        if rank == size - 1:
            schedule.step(*inputs, target=whole["labels"], losses=losses)
        else:
            schedule.step(*inputs)
        optimizer.step()
        return float(sum(float(loss.detach()) for loss in losses))

    timing.train(step, options.steps, options.output, sum_losses=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
