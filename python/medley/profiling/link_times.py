"""Times of collectives between the processes of a job, as the transport of a run does them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from medley import _runtime
from medley.run import exchange, job

MOST_BYTES = 16 << 20  # of a collective
_SLOW_SECONDS = 2.0  # a collective that takes longer is measured once
_TIMEOUT_MS = 120_000


def own_device(this: job.Job | None) -> str:
    """Returns the device that a process of a job measures, by PyTorch's name."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{(this.local_rank if this else 0) % torch.cuda.device_count()}"


class Links:
    """Times collectives between the processes of a job, as the transport of a run does them."""

    def __init__(
        self, this: job.Job, wanted: list[tuple[str, list[int], list[int]]], repetitions: int = 5
    ) -> None:
        self._rank = this.rank
        self._size = this.size
        self._repetitions = repetitions
        self.wanted = wanted
        everybody = tuple(range(this.size))
        sets = sorted({tuple(devices) for _, devices, _ in wanted} | {everybody})
        cuda = torch.cuda.is_available()
        self._device = torch.device(own_device(this))
        names = {"/".join(map(str, ("profile", *each))): list(each) for each in sets}
        made = exchange.make_groups(names, "nccl" if cuda else "gloo")
        self._transport = _runtime.c10d_transport(
            {tuple(names[name]): group for name, group in made.items()}, _TIMEOUT_MS
        )

    def time(self, collective: str, devices: list[int], lengths: list[int]) -> float:
        """Returns the median over repetitions of the slowest device's seconds."""
        once = self._once(collective, devices, lengths)
        self._timed(once)
        times = [exchange.largest(self._timed(once))]
        while times[0] < _SLOW_SECONDS and len(times) < self._repetitions:
            times.append(exchange.largest(self._timed(once)))
        return statistics.median(times)

    def _once(
        self, collective: str, devices: list[int], lengths: list[int]
    ) -> Callable[[], object] | None:
        if self._rank not in devices:
            return None
        me, size = devices.index(self._rank), 4
        elements = [length // size for length in lengths]
        count = len(devices)
        send: list[int] = []
        receive: list[int] = []
        if collective == "all_gather":
            own, receive = elements[me], elements
        elif collective == "all_to_all":
            send, receive = elements[me * count : (me + 1) * count], elements[me::count]
            own = sum(send)
        else:
            own = sum(elements)
            send = [] if collective == "all_reduce" else elements
        tensor = torch.rand(own, device=self._device)

        def run() -> object:
            pending = self._transport.post(collective, devices, me, [tensor], send, receive)
            return pending.wait()

        return run

    def _timed(self, once: Callable[[], object] | None) -> float:
        dist.barrier()
        if once is None:
            return 0.0
        begin = time.perf_counter()
        once()
        self._synchronize()
        return time.perf_counter() - begin

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def slowdown(self) -> float:
        """Returns how many times as long a matrix product takes while its device communicates."""
        left = torch.rand(384, 384, device=self._device)
        alone = statistics.median(self._product(left) for _ in range(20))
        devices = list(range(self._size))
        data: Tensor = torch.rand(MOST_BYTES // 4, device=self._device)
        together: list[float] = []
        for _ in range(3):
            dist.barrier()
            pending = self._transport.post("all_reduce", devices, self._rank, [data])
            together += [self._product(left) for _ in range(5)]
            pending.wait()
        return max(1.0, statistics.median(together) / alone)

    def _product(self, left: Tensor) -> float:
        begin = time.perf_counter()
        torch.mm(left, left)
        self._synchronize()
        return time.perf_counter() - begin
