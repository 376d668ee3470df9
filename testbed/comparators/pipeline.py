"""1F1B of torch.distributed.pipelining with a number of blocks per stage set by hand: one pipeline,
or a grid of identical ones with DistributedDataParallel over the replicas of a stage. Ranks go
stage by stage: the replicas of the first one, then those of the second, and so on. The loss of a
micro-batch is its sum divided by the number of labels of the whole batch. If gradients are averaged
over replicas, it is multiplied by their number. The losses then add up to the global mean."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from medley_extras.models.gpt import GPT
from testbed.comparators import process, rows, timing, workloads
from testbed.grids import Sizes, even


class Part(nn.Module):
    """Some blocks of a GPT. The first part has the embeddings, the last one the head."""

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
    """Returns the list of blocks to divide. Raises ValueError for an unsupported model."""
    if not isinstance(model, GPT) or model.head.weight is model.tokens.weight:
        raise ValueError("pipeline: found another model, expected a GPT whose head is not tied")
    return model.blocks


def sizes_of(workload: str) -> Sizes:
    """Returns the sizes of a workload for an estimate."""
    model, example = workloads.load(workload)
    block = next(iter(blocks_of(model)))
    assert isinstance(model, GPT)
    tokens = example["labels"].shape[1]
    return Sizes(
        rows=len(example["labels"]),
        blocks=len(model.blocks),
        block_parameters=sum(p.numel() for p in block.parameters()),
        head_parameters=model.head.weight.numel(),
        row_tokens=tokens,
        row_bytes=4 * tokens * model.tokens.embedding_dim,
    )


def cut(model: nn.Module, counts: Sequence[int], stages: int, stage: int) -> Part:
    """Returns a stage of a model with given numbers of blocks per stage. Raises ValueError if their
    sum differs from the model's."""
    whole = len(blocks_of(model))
    if len(counts) != stages or sum(counts) != whole or min(counts) < 1:
        raise ValueError(
            f"--blocks: found {' '.join(map(str, counts))}, expected {stages} numbers, one for "
            f"each stage, that add up to {whole}, the blocks of the model"
        )
    assert isinstance(model, GPT)
    return Part(model, sum(counts[:stage]), sum(counts[: stage + 1]))


def own_rows(batch: workloads.Batch, replicas: int, replica: int) -> workloads.Batch:
    """Returns the rows of a replica: all have as many."""
    each = len(batch["labels"]) // replicas
    first = replica * each
    return {name: value[first : first + each] for name, value in batch.items()}


def check(rows_of_batch: int, size: int, replicas: int, microbatches: int) -> None:
    """Raises ValueError if devices or rows cannot be divided like that."""
    if replicas < 1 or size % replicas:
        raise ValueError(f"--replicas: found {replicas}, expected a divisor of {size}, the devices")
    stages = size // replicas
    if microbatches < stages or rows_of_batch % (replicas * microbatches):
        raise ValueError(
            f"--microbatches: found {microbatches}, expected at least {stages}, the stages, and a "
            f"divisor of {rows_of_batch / replicas:g}, the rows of a pipeline"
        )


class Stage:
    """The part of the grid that a process trains."""

    def __init__(self, options: argparse.Namespace, rank: int, size: int) -> None:
        """Process `rank` of `size`; `options` are those of add_options(). All processes call it."""
        model, example = workloads.load(options.workload)
        check(len(example["labels"]), size, options.replicas, options.microbatches)
        stages = size // options.replicas
        names = ("stage", "replica")
        mesh = init_device_mesh("cpu", (stages, options.replicas), mesh_dim_names=names)
        self.number, self.replica = divmod(rank, options.replicas)
        counts = options.blocks or even(len(blocks_of(model)), stages)
        self.first = sum(counts[: self.number])  # its first block
        self.part = cut(model, counts, stages, self.number)
        self._is_last = self.number == stages - 1
        self._replicas: int = options.replicas
        self._labels = 1  # labels that count in the current batch
        module: nn.Module = self.part
        if options.replicas > 1:
            module = DistributedDataParallel(
                self.part,
                process_group=mesh.get_group("replica"),
                bucket_cap_mb=options.bucket_mb,
                gradient_as_bucket_view=True,
            )
        group = mesh.get_group("stage")
        stage = PipelineStage(module, self.number, stages, torch.device("cpu"), group=group)
        self._schedule = Schedule1F1B(stage, options.microbatches, self._loss_of, scale_grads=False)
        self.optimizer = torch.optim.AdamW(
            self.part.parameters(), lr=workloads.LEARNING_RATE, weight_decay=0.01, fused=True
        )
        self._data = workloads.batches(example, 4)

    def _loss_of(self, logits: Tensor, target: Tensor) -> Tensor:
        losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
        weighted: Tensor = losses * (self._replicas / self._labels)
        return weighted

    def step(self, number: int) -> float:
        """Trains on a global batch. Returns this process's part of the loss."""
        whole = self._data[number % len(self._data)]
        self._labels = rows.counted(whole["labels"])
        own = own_rows(whole, self._replicas, self.replica)
        # Gradients are views of DDP's buckets.
        self.optimizer.zero_grad(set_to_none=False)
        losses: list[Tensor] = []
        inputs = (own["input_ids"],) if self.number == 0 else ()
        if self._is_last:
            self._schedule.step(*inputs, target=own["labels"], losses=losses)
        else:
            self._schedule.step(*inputs)
        self.optimizer.step()
        return sum(float(loss.detach()) for loss in losses) / float(self._replicas)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the grid."""
    parser.add_argument("--blocks", type=int, nargs="+", help="of each stage; default: even")
    parser.add_argument("--microbatches", type=int, default=8, help="of each pipeline")
    parser.add_argument("--replicas", type=int, default=1, help="of each stage: pipelines")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="of DDP")


def main() -> None:
    """Trains as one process of a job."""
    parser = process.parser(
        __doc__,
        workload="a GPT: gpt or gpt?rows=96",
        cluster="is not read: the order of stages is that of the ranks",
    )
    add_options(parser)
    options = parser.parse_args()

    train(options, *process.begin())
    gc.collect()  # threads of process groups must end first
    dist.destroy_process_group()


def train(options: argparse.Namespace, rank: int, size: int) -> None:
    """Trains and writes the record."""
    stage = Stage(options, rank, size)
    timing.train(stage.step, options.steps, options.output, sum_losses=True)


if __name__ == "__main__":
    main()
