"""1F1B that saves to shared storage every few steps and starts from the saved state. After a loss
the whole job is killed and restarted. By Varuna's rule every worker reloads its stage. There is one
file for each block, the embeddings and the head, so that stages may change. It has the parameters,
both moments of AdamW and its step. The position in the data is the step. Plain PyTorch."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from testbed.comparators import pipeline, process
from testbed.shared_storage import SharedStorage

COMMITTED = "COMMIT"  # names the step that is whole


class Log:
    """Lines of JSON with the events of this process, on the clock of the whole machine."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def say(self, what: str, **more: float) -> None:
        """Writes a line."""
        print(json.dumps({"what": what, "at": time.monotonic(), **more}), file=self._file)


def units(part: pipeline.Part, first: int) -> Iterator[tuple[str, nn.Module]]:
    """Yields the units of a stage by their file names. `first` is its first block."""
    for name in ("tokens", "positions", "norm", "head"):
        module = getattr(part, name)
        if module is not None:
            yield name, module
    for number, block in enumerate(part.blocks, start=first):
        yield f"block{number}", block


def save(
    storage: SharedStorage, step: int, part: pipeline.Part, first: int, optimizer: torch.optim.AdamW
) -> None:
    """Writes the state of a stage after a step."""
    for name, module in units(part, first):
        state = {
            key: (parameter.detach(), dict(optimizer.state[parameter]))
            for key, parameter in module.named_parameters()
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        storage.write(f"{step}.{name}", buffer.getvalue())


def load(
    storage: SharedStorage, step: int, part: pipeline.Part, first: int, optimizer: torch.optim.AdamW
) -> None:
    """Reads the files of save(), possibly of other stages."""
    for name, module in units(part, first):
        data = io.BytesIO(storage.read(f"{step}.{name}"))
        state: dict[str, tuple[torch.Tensor, dict[str, Any]]] = torch.load(data, weights_only=True)
        for key, parameter in module.named_parameters():
            value, moments = state[key]
            with torch.no_grad():
                parameter.copy_(value)
            optimizer.state[parameter] = moments


def main() -> None:
    """Trains as one process of a job, until it is killed or has done its steps."""
    parser = process.parser(__doc__, workload="a GPT", cluster="is not read")
    pipeline.add_options(parser)
    parser.add_argument("--storage", type=Path, required=True, help="a folder that all share")
    parser.add_argument("--bytes-per-second", type=float, required=True, help="of the storage")
    parser.add_argument("--save-every", type=int, required=True, help="steps")
    options = parser.parse_args()
    log = Log(options.output)
    log.say("imported")
    rank, size = process.begin()
    log.say("joined")
    stage = pipeline.Stage(options, rank, size)
    storage = SharedStorage(options.storage, options.bytes_per_second)
    done = 0
    if storage.has(COMMITTED):
        done = int(storage.read(COMMITTED))
        load(storage, done, stage.part, stage.first, stage.optimizer)
    log.say("loaded", bytes=storage.moved, step=done)
    for number in range(done, options.steps):
        loss = torch.tensor(stage.step(number), dtype=torch.float64)
        dist.all_reduce(loss)  # also confirms that all have done this step
        log.say("step", step=number + 1, loss=float(loss))
        if (number + 1) % options.save_every == 0:
            if stage.replica == 0:
                save(storage, number + 1, stage.part, stage.first, stage.optimizer)
            dist.barrier()
            if rank == 0:
                storage.write(COMMITTED, str(number + 1).encode())
            log.say("saved", step=number + 1)
    dist.barrier()
    os._exit(0)  # groups are left to the kernel


if __name__ == "__main__":
    main()
