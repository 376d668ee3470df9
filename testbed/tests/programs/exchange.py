"""Times reduce-scatters of 8 MB over Medley's transport, and writes the median of five to
FOLDER."""

import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from medley import _runtime
from testbed.ready import ready

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
everybody = list(range(size))
assert dist.group.WORLD is not None
transport = _runtime.c10d_transport({tuple(everybody): dist.group.WORLD.group_name}, 60_000)
lengths = [500_000] * size
tensor = torch.ones(sum(lengths))
ready()
times = []
for _ in range(6):
    dist.barrier()
    begin = time.monotonic()
    transport.post("reduce_scatter", everybody, rank, [tensor], send=lengths).wait()
    slowest = torch.tensor(time.monotonic() - begin)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    times.append(float(slowest))
if rank == 0:
    Path(sys.argv[1], "seconds").write_text(str(statistics.median(times[1:])))
dist.barrier()
dist.destroy_process_group()
os._exit(0)
