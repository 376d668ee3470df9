"""The transport over process groups: several processes, Gloo, unequal lengths."""

from __future__ import annotations

import multiprocessing
import pathlib
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

_runtime = pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")


def _work(rank: int, size: int, folder: str, body: Callable[..., None], results: Any) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=store)
    try:
        body(rank, size, dist.group.WORLD.group_name)
        results.put((rank, None))
    except BaseException:
        results.put((rank, traceback.format_exc()))


def spawn(body: Callable[..., None], size: int, folder: pathlib.Path) -> None:
    """Runs body(rank, size, group name) in that many processes. Raises the error of any of them."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_work, args=(rank, size, str(folder), body, results))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
    failures = [f"rank {rank}: {error}" for rank, error in outcomes if error]
    assert not failures, "\n".join(failures)


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def _collectives(rank: int, size: int, name: str) -> None:
    everybody = list(range(size))
    # The order of the mesh's axis may differ from that of the ranks.
    for devices in (everybody, everybody[::-1]):
        transport = _runtime.c10d_transport({tuple(everybody): name}, 20000)
        me = devices.index(rank)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            tensors = [values(rank, 6, dtype).view(2, 3), values(rank, 5, dtype)]
            kept = [t.clone() for t in tensors]
            pending = transport.post("all_reduce", devices, me, tensors)
            single = transport.post("all_reduce", devices, me, [tensors[0]], maximum=True)
            found = pending.wait()
            shapes = [t.shape for t in found]
            assert shapes == [(2, 3), (5,)]
            expected = sum(values(d, 6, dtype).view(2, 3).double() for d in devices)
            torch.testing.assert_close(found[0].double(), expected, rtol=2e-2, atol=2e-2)
            maximum = torch.stack([values(d, 6, dtype) for d in devices]).amax(0)
            assert torch.equal(single.wait()[0].flatten(), maximum)
            assert all(torch.equal(a, b) for a, b in zip(tensors, kept, strict=True))

        for lengths in ([3] * size, [2 + 3 * d if d else 0 for d in range(size)], [0] * size):
            mine = values(rank, lengths[me])
            (whole,) = transport.post("all_gather", devices, me, [mine], receive=lengths).wait()
            parts = [values(d, n) for d, n in zip(devices, lengths, strict=True)]
            assert torch.equal(whole, torch.cat(parts))

            total = sum(lengths)
            (sum_of_mine,) = transport.post(
                "reduce_scatter", devices, me, [values(rank, total)], send=lengths
            ).wait()
            expected = values(devices[0], total)
            for d in devices[1:]:
                expected = expected + values(d, total)
            assert torch.equal(sum_of_mine, expected.split(lengths)[me])

        table = [[(i + 2 * j) % 4 for j in range(size)] for i in range(size)]
        receive = [table[j][me] for j in range(size)]
        (got,) = transport.post(
            "all_to_all", devices, me, [values(rank, sum(table[me]))], table[me], receive
        ).wait()
        pieces = [values(d, sum(t)).split(t)[me] for d, t in zip(devices, table, strict=True)]
        assert torch.equal(got, torch.cat(pieces))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives(size: int, tmp_path: pathlib.Path) -> None:
    spawn(_collectives, size, tmp_path)


def _silence(rank: int, size: int, name: str) -> None:
    transport = _runtime.c10d_transport({(0, 1): name}, 500)
    if rank == 1:
        time.sleep(2)
        return
    pending = transport.post("all_reduce", [0, 1], 0, [torch.ones(3)])
    with pytest.raises(OSError, match=r"^over device 0, device 1: not done"):
        pending.wait()
    late = transport.post("all_reduce", [0, 1], 0, [torch.ones(3)])
    transport.abort("device 1 is gone")
    with pytest.raises(OSError, match="aborted: device 1 is gone"):
        late.wait()
    with pytest.raises(OSError, match="aborted: device 1 is gone"):
        transport.post("all_reduce", [0, 1], 0, [torch.ones(3)])
    with pytest.raises(RuntimeError, match=r"no process group for devices \[0, 5\]"):
        _runtime.c10d_transport({}, 500).post("all_reduce", [5, 0], 0, [torch.ones(3)])


@pytest.mark.slow
def test_silence_ends_in_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    spawn(_silence, 2, tmp_path)


def _silence_of_messages(rank: int, size: int, name: str) -> None:
    everybody = list(range(size))
    transport = _runtime.c10d_transport({tuple(everybody): name}, 60000 if rank else 700)
    lengths = [2, 2, 2]
    if rank == 2:
        time.sleep(3)
        return
    late = transport.post("reduce_scatter", everybody, rank, [torch.ones(6)], send=lengths)
    if rank == 0:
        with pytest.raises(OSError, match=r"^over device 0, .*: not done within 700"):
            late.wait()
        return
    threading.Timer(0.3, transport.abort, ["device 2 is gone"]).start()
    with pytest.raises(OSError, match="aborted: device 2 is gone"):
        late.wait()


@pytest.mark.slow
def test_messages_that_do_not_come_end_in_an_error(tmp_path: pathlib.Path) -> None:
    spawn(_silence_of_messages, 3, tmp_path)


def test_group_names_are_those_of_sets() -> None:
    assert _runtime.group_name([3, 0, 2], 4) == "medley/4/0,2,3"


def test_store() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = _runtime.c10d_store("127.0.0.1", server.port, False, "generation0/", 5000)
    other = _runtime.c10d_store("127.0.0.1", server.port, False, "generation0/", 5000)
    assert store.get("a") is None
    store.set("a", "1")
    assert other.get("a") == "1" and other.wait("a", 100) == "1"
    assert other.set_first("a", "2") == "1"
    assert store.set_first("b", "") == "" and other.set_first("b", "x") == ""
    with pytest.raises(OSError, match="no value within 50 ms: generation0/c"):
        store.wait("c", 50)


# All of 127.0.0.0/8 is this machine.
def test_a_store_listens_at_its_own_address_only() -> None:
    from medley.run.launch import free_port

    port = free_port()
    store = _runtime.c10d_store("127.0.0.1", port, True)
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    with pytest.raises(OSError, match=f"store at 127.0.0.1:{port}: Address already in use"):
        _runtime.c10d_store("127.0.0.1", port, True)
    store.set("a", "1")
    assert _runtime.c10d_store("127.0.0.1", port, False).get("a") == "1"
