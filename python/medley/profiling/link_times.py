"""Times of collectives between the processes of a job, with the transport of a run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from medley import _core, _runtime
from medley.cluster import Cluster
from medley.run import exchange, job

MOST_BYTES = 16 << 20  # per collective
_MOST_BYTES_BUSY = 256 << 10  # between busy devices, where latency matters
_BUSY_SECONDS = 0.01  # compute time before a message, as in a step
_WINDOW_SECONDS = 0.3  # several periods of a quota
_WHOLE = 0.9  # share of a CPU that counts as a whole one
_ALONE_SECONDS = 1.0  # compute time, before and between collectives
_SLOW_SECONDS = 2.0  # a slower collective is measured once
_REPETITIONS = 5
_TIMEOUT_MS = 120_000


def own_device(this: job.Job | None) -> str:
    """Returns the device that a process of a job measures, by PyTorch's name."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{(this.local_rank if this else 0) % torch.cuda.device_count()}"


Wanted = list[tuple[str, list[int], list[int], float]]  # collective, devices, lengths, busy seconds


def wanted_collectives(cluster: Cluster, busy: float | None) -> Wanted:
    """Returns the collectives to measure, smaller ones first. `busy`: seconds that devices compute
    before each, which measures only messages of pairs; 0: idle devices. None: CPUs compute before
    small messages, because these also wait for the CPU, and are idle before large ones."""
    busy_seconds = _BUSY_SECONDS if busy is None else busy
    found: Wanted = []
    for collective, devices, lengths in _core.wanted_collectives(cluster, MOST_BYTES):
        is_small = sum(lengths) <= _MOST_BYTES_BUSY
        is_message = collective == "all_gather" and len(devices) == 2 and len(set(lengths)) == 1
        if busy != 0 and is_small and is_message:
            found.append((collective, devices, lengths, busy_seconds))
        elif busy == 0 or (busy is None and not is_small):
            found.append((collective, devices, lengths, 0.0))
    return sorted(found, key=lambda each: sum(each[2]))


def window_here() -> float:
    """Returns the window of measurements, in seconds: 0 if this process has a whole CPU."""
    end, used = time.monotonic() + _WINDOW_SECONDS, time.thread_time()
    while time.monotonic() < end:
        pass
    return 0.0 if time.thread_time() - used > _WHOLE * _WINDOW_SECONDS else _WINDOW_SECONDS


class Work:
    """The work of a device between two exchanges, which takes a given time alone."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._left = torch.rand(64, 64, device=device)
        self._synchronizes = device.type == "cuda"
        self._products = 1
        self._products = max(1, round(seconds / self._mean()))
        self.seconds = self._mean()

    def __call__(self) -> None:
        for _ in range(self._products):
            torch.mm(self._left, self._left)
        if self._synchronizes:
            torch.cuda.synchronize(self._left.device)

    def _mean(self) -> float:
        self()
        begin, count, passed = time.perf_counter(), 0, 0.0
        while passed < _ALONE_SECONDS:
            self()
            count += 1
            passed = time.perf_counter() - begin
        return passed / count


class Links:
    """Times collectives between the processes of a job, with the transport of a run."""

    def __init__(self, this: job.Job, wanted: Wanted) -> None:
        self._rank = this.rank
        self._size = this.size
        self.wanted = wanted
        everybody = tuple(range(this.size))
        sets = sorted({tuple(devices) for _, devices, *_ in wanted} | {everybody})
        cuda = torch.cuda.is_available()
        self._device = torch.device(own_device(this))
        names = {"/".join(map(str, ("profile", *each))): list(each) for each in sets}
        made = exchange.make_groups(names, "nccl" if cuda else "gloo")
        self._transport = _runtime.c10d_transport(
            {tuple(names[name]): group for name, group in made.items()}, _TIMEOUT_MS
        )
        dist.barrier()
        self._work = {busy: Work(self._device, busy) for busy in {each[3] for each in wanted} - {0}}

    def time(
        self, collective: str, devices: list[int], lengths: list[int], busy: float = 0.0
    ) -> float:
        """Returns the slowest device's time in seconds, as the median over repetitions. `busy`:
        seconds that each device computes before the collective, one of those in `wanted`."""
        once = self._once(collective, devices, lengths)
        self._timed(once)
        if busy > 0:
            return self._time_after_work(once, self._work[busy], math.ceil(_ALONE_SECONDS / busy))
        times = [exchange.largest(self._timed(once))]
        while times[0] < _SLOW_SECONDS and len(times) < _REPETITIONS:
            times.append(exchange.largest(self._timed(once)))
        return statistics.median(times)

    def _time_after_work(self, once: Callable[[], object] | None, work: Work, rounds: int) -> float:
        """Returns the additional time of a round with work and the collective over the slowest
        device's work, but at least that of the collective alone."""
        alone = min(exchange.largest(self._timed(once)) for _ in range(3))
        dist.barrier()
        begin = time.perf_counter()
        if once is not None:
            for _ in range(rounds):
                work()
                once()
        took = (time.perf_counter() - begin) / rounds
        computed = work.seconds if once is not None else 0.0
        return max(exchange.largest(took) - exchange.largest(computed), alone)

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
        """Returns the factor by which a matmul slows down while its device communicates."""
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
