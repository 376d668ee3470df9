"""Checks of `medley doctor` that several processes make together: one of CHECKS in each.

`python -m medley_extras.doctor.ranks CHECK BACKEND RANK RANKS FOLDER` is one process. It writes a
line to its file in the folder before each operation, and the result as the last line. `run` starts
the processes and waits. The files show the place of a hang.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_START_SECONDS = 90.0  # for the import of PyTorch and the connection
_LARGEST = 28  # collectives of up to 2**28 bytes
_LARGEST_ON_PROCESSORS = 20


class StoppedError(Exception):
    """A process hung or failed. The sentence names the process and its operation."""


def run(
    check: str,
    backend: str,
    ranks: int,
    *,
    silence: float = 10.0,
    may_die: bool = False,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Returns the result of each process, except one that must die (`may_die`)."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            errors = stack.enter_context(open(Path(folder) / f"{rank}.err", "w"))
            command = [sys.executable, "-m", "medley_extras.doctor.ranks", check, backend]
            processes.append(
                subprocess.Popen(
                    [*command, str(rank), str(ranks), folder],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env={**os.environ, **(environment or {})},
                )
            )
        try:
            _wait(processes, Path(folder), check, silence, may_die)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        results = [_lines(Path(folder), rank)[-1:] for rank in range(ranks)]
        return [json.loads(last[0]) for last in results if last and last[0].startswith("{")]


def _lines(folder: Path, rank: int) -> list[str]:
    try:
        return (folder / f"{rank}.said").read_text().splitlines()
    except OSError:
        return []


def _wait(
    processes: list[subprocess.Popen[bytes]],
    folder: Path,
    check: str,
    silence: float,
    may_die: bool,
) -> None:
    begun = time.monotonic()
    heard = [(0, begun)] * len(processes)  # lines read, and the time of the last
    while any(process.poll() is None for process in processes):
        time.sleep(0.05)
        for rank, process in enumerate(processes):
            lines = _lines(folder, rank)
            if len(lines) != heard[rank][0]:
                heard[rank] = (len(lines), time.monotonic())
            if process.poll() is not None:
                continue
            allowed = silence if lines else _START_SECONDS
            if time.monotonic() - heard[rank][1] > allowed:
                at = lines[-1] if lines else "its start"
                raise StoppedError(f"{check}: rank {rank} hangs in {at}, for {allowed:.0f} s")
    for rank, process in enumerate(processes):
        if process.returncode and not may_die:
            said = (folder / f"{rank}.err").read_text(errors="replace").strip().splitlines()
            at = (_lines(folder, rank) or ["its start"])[-1]
            why = said[-1] if said else f"it ended with {process.returncode}"
            raise StoppedError(f"{check}: rank {rank} failed in {at}: {why}")


# --- in a process ---------------------------------------------------------------------------------


class Here:
    """One process: its device, and the file to which it writes each operation."""

    def __init__(self, backend: str, rank: int, ranks: int, folder: Path) -> None:
        import torch

        self.backend, self.rank, self.ranks, self.folder = backend, rank, ranks, folder
        self.device = torch.device(f"cuda:{rank}" if backend == "nccl" else "cpu")
        self.largest = _LARGEST if backend == "nccl" else _LARGEST_ON_PROCESSORS

    def say(self, line: str) -> None:
        with open(self.folder / f"{self.rank}.said", "a") as file:
            file.write(line + "\n")

    def meet(self, name: str, ranks: int) -> None:
        import torch.distributed as dist

        dist.init_process_group(
            self.backend,
            init_method=f"file://{self.folder}/{name}",
            rank=self.rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=60),
        )

    def synchronize(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _pattern(size: int, rank: int, device: Any) -> Any:
    """Returns bytes that differ by rank and place."""
    import torch

    places = torch.arange(size, device=device, dtype=torch.int32)
    return places.mul_(31).add_(7 * rank + 1).remainder_(251).to(torch.uint8)


def _collectives(here: Here) -> dict[str, Any]:
    """Checks the results of all-reduce, broadcast and messages in a ring, for 1 byte to 256 MiB and
    odd sizes."""
    import torch
    import torch.distributed as dist

    here.meet("collectives", here.ranks)
    root = here.ranks - 1
    rate = 0.0
    for power in range(here.largest + 1):
        for size in sorted({1 << power, (1 << power) + 1}):
            here.say(f"all-reduce of {size} bytes")
            data = _pattern(size, here.rank, here.device)
            begin = time.perf_counter()
            dist.all_reduce(data)
            here.synchronize()
            rate = size / (time.perf_counter() - begin)
            expected = torch.zeros_like(data)
            for rank in range(here.ranks):
                expected += _pattern(size, rank, here.device)
            _check(torch.equal(data, expected), f"all-reduce of {size} bytes")
            here.say(f"broadcast of {size} bytes")
            data = _pattern(size, here.rank, here.device)
            dist.broadcast(data, root)
            last = _pattern(size, root, here.device)
            _check(torch.equal(data, last), f"broadcast of {size} bytes")
            if here.ranks == 1:
                continue
            here.say(f"messages of {size} bytes")
            data = _pattern(size, here.rank, here.device)
            got = torch.empty_like(data)
            after, before = (here.rank + 1) % here.ranks, (here.rank - 1) % here.ranks
            ring = [dist.P2POp(dist.isend, data, after), dist.P2POp(dist.irecv, got, before)]
            for work in dist.batch_isend_irecv(ring):
                work.wait()
            sent = _pattern(size, before, here.device)
            _check(torch.equal(got, sent), f"messages of {size} bytes")
    version: tuple[int, ...] = ()
    if here.backend == "nccl":
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {"bytes_per_s": rate, "version": ".".join(map(str, version))}


def _check(right: bool, what: str) -> None:
    if not right:
        raise SystemExit(f"other bytes arrived: {what}")


def _opposite(here: Here) -> dict[str, Any]:
    """Runs two backends together, started in opposite order on neighbouring ranks."""
    import torch
    import torch.distributed as dist

    here.meet("opposite", here.ranks)
    groups = [dist.new_group(backend=here.backend), dist.new_group(backend="gloo")]
    tensors = [torch.ones(1 << 20, device=here.device), torch.ones(1 << 20)]
    order = [0, 1] if here.rank % 2 == 0 else [1, 0]
    for turn in range(20):
        here.say(f"two sums at once, turn {turn}")
        works = [
            dist.all_reduce(tensors[each], group=groups[each], async_op=True) for each in order
        ]
        for work in works:
            work.wait()
        here.synchronize()
        for tensor in tensors:
            _check(bool((tensor == here.ranks).all()), "two sums at once")
            tensor.fill_(1)
    return {}


def _overlap(here: Here) -> dict[str, Any]:
    """Returns the slow-down of matmuls in parallel with an all-reduce."""
    import torch
    import torch.distributed as dist

    here.meet("overlap", here.ranks)
    large = here.device.type == "cuda"
    dtype = torch.float16 if large else torch.float32
    matrix = torch.rand(4096 if large else 256, 4096 if large else 256, device=here.device).to(
        dtype
    )
    data = torch.ones((64 << 20) if large else (1 << 20), device=here.device)

    def products() -> float:
        begin = time.perf_counter()
        for _ in range(40):
            torch.mm(matrix, matrix)
        if large:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - begin

    alone, beside = [], []
    for turn in range(7):
        here.say(f"products, turn {turn}")
        here.synchronize()
        dist.barrier()
        alone.append(products())
        dist.barrier()
        work = dist.all_reduce(data, async_op=True)
        beside.append(products())
        work.wait()
        here.synchronize()
    return {"slowdown": sorted(beside)[3] / sorted(alone)[3]}


def _abort(here: Here) -> dict[str, Any]:
    """Kills the last rank in an all-reduce. Returns the time until the others leave it, and whether
    they can make a group without it."""
    import torch
    import torch.distributed as dist

    here.meet("abort", here.ranks)
    data = torch.ones(1 << 20, device=here.device)
    here.say("the first all-reduce")
    dist.all_reduce(data)
    here.synchronize()
    if here.rank == here.ranks - 1:
        os._exit(1)
    here.say("an all-reduce in which a rank has died")
    begin = time.monotonic()
    with contextlib.suppress(RuntimeError):
        work = dist.all_reduce(data, async_op=True)
        while not work.is_completed() and time.monotonic() - begin < 3:
            time.sleep(0.01)
        if not work.is_completed() and here.backend == "nccl":
            here.say("the abort of its group")
            dist.distributed_c10d._abort_process_group()
    seconds = time.monotonic() - begin
    with contextlib.suppress(RuntimeError, AssertionError, ValueError):
        dist.destroy_process_group()
    here.say("a group of the others")
    here.meet("after", here.ranks - 1)
    data = torch.ones(1 << 20, device=here.device)
    dist.all_reduce(data)
    here.synchronize()
    _check(bool((data == here.ranks - 1).all()), "a sum of the others")
    return {"seconds": seconds}


def _allocator(here: Here) -> dict[str, Any]:
    """Runs an all-reduce on memory that the allocator has grown in place."""
    import torch
    import torch.distributed as dist

    here.meet("allocator", here.ranks)
    held = []
    for turn in range(8):
        here.say(f"memory, turn {turn}")
        held.append(torch.ones((8 << 20) + turn, device=here.device))
        dist.all_reduce(held[-1])
        here.synchronize()
        _check(bool((held[-1] == here.ranks).all()), f"memory, turn {turn}")
        if turn % 2:
            held.pop(0)
    return {}


def _compiled(here: Here) -> dict[str, Any]:
    """Compiles a block ahead of time, loads it and runs it."""
    import torch
    from torch._inductor import config

    block = torch.nn.Sequential(
        torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
    ).to(here.device)
    x = torch.randn(32, 64, device=here.device)
    begin = time.perf_counter()
    with torch.no_grad():
        here.say("the export of a block")
        exported = torch.export.export(block, (x,))
        here.say("its compilation")
        # Precompiled headers take longer than the rest, and are used once here.
        config.cpp_cache_precompile_headers = False
        path = torch._inductor.aoti_compile_and_package(
            exported,
            package_path=str(here.folder / "block.pt2"),
            inductor_configs={"aot_inductor.precompile_headers": False},
        )
        here.say("its loading")
        loaded = torch._inductor.aoti_load_package(path)
        here.say("its run")
        error = float((loaded(x) - block(x)).abs().max())
    return {"seconds": time.perf_counter() - begin, "error": error}


CHECKS: dict[str, Callable[[Here], dict[str, Any]]] = {
    "collectives": _collectives,
    "opposite": _opposite,
    "overlap": _overlap,
    "abort": _abort,
    "allocator": _allocator,
    "compiled": _compiled,
}


def main() -> None:
    check, backend, rank, ranks, folder = sys.argv[1:]
    here = Here(backend, int(rank), int(ranks), Path(folder))
    if here.device.type == "cuda":
        import torch

        torch.cuda.set_device(here.device)
    result = CHECKS[check](here)
    here.say(json.dumps(result))
    os._exit(0)  # skips the cleanup of a dead rank's remains


if __name__ == "__main__":
    main()
