"""Exchange between the processes of a job: connection, groups, tensors, texts. Importing it
requires PyTorch. The environment of a job is read in job.py."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from medley import _runtime
from medley.run import connections, elastic, ends, job, meeting, threads
from medley.run.groups import Members, Reordered, World
from medley.run.patience import Patience, say

# Default seconds that processes wait for each other, at start and in an exchange.
TIMEOUT_SECONDS = 600
_connected: list[Any] = []  # the store of the job, and other objects of the same lifetime
_peers: list[World | Members | Reordered] = [World()]  # the current ones


@functools.cache
def _join(this: job.Job) -> None:
    if not job.says_how_c10d_logs():
        _runtime.print_errors_of_c10d_only()
    if this.elastic:
        job.choose_interface(this.master)
    elif not dist.is_initialized():
        job.choose_interface(this.master)
        with connections.guarded():
            _meet(this)
    with connections.guarded():
        store = _runtime.c10d_store(**job.store_address(), serve=False)
    ends.connect(store, f"rank {this.rank}", *filter(None, [job.device_name()]))
    _connected.append(store)
    introduce()
    _begin_pulse(this.rank)
    if this.elastic:
        elastic.begin(store, use, TIMEOUT_SECONDS)


def _begin_pulse(rank: int) -> None:
    _pulse.clear()
    if rank == 0:
        _pulse.append(
            _runtime.Pulse(
                **job.store_address(),
                key=f"pulse/{_peers[0].name}",
                period_ms=round(1000 * job.pulse_seconds()),
            )
        )


def use(peers: Members) -> None:
    """Replaces the processes of the job by these."""
    _peers[0] = peers
    _made[0] = itertools.count()
    _begin_pulse(peers.rank)


@contextlib.contextmanager
def reordered(order: Sequence[int] | None) -> Iterator[None]:
    """Gives processes other ranks inside the block: the place in `order`, which lists the outer
    ranks. None gives the outer rank."""
    before = _peers[0]
    own = before.peers if isinstance(before, Reordered) else before
    _peers[0] = own if order is None else Reordered(own, order)
    try:
        yield
    finally:
        _peers[0] = before


def outer_ranks(ranks: Sequence[int]) -> list[int]:
    """Returns ranks as outside of such blocks."""
    peers = _peers[0]
    return peers.ranks(ranks) if isinstance(peers, Reordered) else list(ranks)


def group_name() -> str:
    """Returns the c10d name of the processes of a generation, or of all of the job."""
    world = dist.group.WORLD
    return _peers[0].name or ("" if world is None else world.group_name)


def _meet(this: job.Job) -> None:
    serves = this.rank == 0 and not job.agent_has_store()
    address = job.store_address()
    place = meeting.Meeting(
        **address,
        interface=job.interface(),
        rank=this.rank,
        size=this.size,
        seconds=TIMEOUT_SECONDS,
    )
    store = meeting.meet(place, serves)
    if address["port"] == 0:
        job.keep_port(store.port)  # chosen by the system
    keys = PrefixStore(f"{address['prefix']}torch", store)
    try:
        with threads.patient():
            dist.init_process_group(
                "gloo", store=keys, rank=this.rank, world_size=this.size, timeout=_timeout()
            )
    except (RuntimeError, ValueError) as error:  # raised by c10d and Gloo
        sentence = str(error).partition("\n")[0]
        raise OSError(
            f"rank {this.rank}: the {this.size} processes of the job met at {place.where}, but "
            f"could not connect to each other: {sentence}"
        ) from None


def _timeout() -> datetime.timedelta:
    return datetime.timedelta(seconds=TIMEOUT_SECONDS)


def join() -> job.Job | None:
    """Returns the job after connecting its processes, or None for a single process."""
    if job.is_one_of_several():
        _install_ends()
    this = job.current()
    if this is not None:
        _join(this)
        if isinstance(_peers[0], Reordered):
            this = dataclasses.replace(this, rank=_peers[0].rank)
    return this


@functools.cache
def _install_ends() -> None:
    ends.install()


def _in_order(ranks: list[int]) -> list[int]:
    """Returns ranks that keep their order although PyTorch may sort those of a group."""
    place = {rank: number for number, rank in enumerate(ranks)}

    class Rank(int):
        def __lt__(self, other: int) -> bool:
            return place[self] < place[other] if isinstance(other, Rank) else int(self) < other

    return [Rank(rank) for rank in ranks]


def make_groups(groups: dict[str, list[int]], backend: str = "gloo") -> dict[str, str]:
    """Makes one process group per list of ranks. Returns the c10d names of this process's groups.
    Every process makes all of them in the same order."""
    names: dict[str, str] = {}
    for name, ranks in groups.items():
        ranks = outer_ranks(ranks)
        scheduled = threads.patient() if backend == "gloo" else contextlib.nullcontext()
        with connections.guarded(), scheduled:
            group = dist.new_group(
                _in_order(ranks), timeout=_timeout(), backend=backend, group_desc=name
            )
        if dist.get_rank() in ranks:
            names[name] = group.group_name
    return names


_pulse: list[_runtime.Pulse] = []  # heartbeat of the first process while others wait
_calls: list[Any] = []  # run of each collective call, the outer one first
_made = [itertools.count()]  # number of results of the first process
_WAIT_IN_SILENCE_SECONDS = 10.0
# Errors of rank 0 that other processes raise too. Any other error becomes the last one.
_RAISED = (ValueError, TypeError, NotImplementedError, OSError, RuntimeError)


def from_first(make: Callable[[], bytes], doing: str) -> bytes:
    """Returns the result of `make` on rank 0 in all processes. An error is raised everywhere, and
    printed by rank 0 alone. The others wait while rank 0 lives; `doing` describes the wait in
    messages."""
    this = join()
    alone = job.joins_later() and isinstance(_peers[0], World)  # not yet joined
    if this is None or this.size == 1 or alone:
        return make()
    store, key = _connected[0], new_key("made")
    parcel, raised = b"", None
    if _peers[0].rank == 0:
        try:
            parcel = b"\0" + make()
        except Exception as error:
            raised = error
            kind = next(
                (i for i, k in enumerate(_RAISED) if isinstance(error, k)), len(_RAISED) - 1
            )
            parcel = bytes([1 + kind]) + str(error).encode()
        store.set(key, str(len(parcel)))
    else:
        _wait_for_first(this, store, key, doing)
    data = torch.frombuffer(bytearray(parcel), dtype=torch.uint8) if parcel else None
    sent = tensor_from(0, data, [int(store.get(key))], torch.uint8).numpy().tobytes()
    if raised is not None:
        raise raised
    if sent[0]:
        theirs = _RAISED[sent[0] - 1](sent[1:].decode())
        setattr(theirs, ends.SAID_ELSEWHERE, True)
        raise theirs
    return sent[1:]


def new_key(what: str) -> str:
    """Returns a key of the store that all current processes compute in the same order."""
    return f"{what}/{_peers[0].name}{next(_made[0])}"


def check() -> None:
    """Raises OSError if the run has failed, or its generation."""
    if (failure := ends.first_failure(store())) is not None:
        raise ends.OthersError(failure["cause"])
    if (this := job.current()) is not None and this.elastic:
        elastic.member().check()


def store() -> Any:
    """Returns the store of the job."""
    return _connected[0]


def from_store(this: job.Job, key: str, doing: str) -> str:
    """Returns the value that rank 0 publishes under a key, once it exists."""
    _wait_for_first(this, store(), key, doing)
    return str(store().get(key))


def _wait_for_first(this: job.Job, store: Any, key: str, doing: str) -> None:
    """Waits until rank 0 has set the key, while it lives and no process has failed."""
    patience = Patience(say_after=_WAIT_IN_SILENCE_SECONDS)
    pulse, next_look, changed = None, 0.0, 0
    looks, every = 0, job.pulse_seconds()
    while store.get(key) is None:
        if patience.waited >= next_look:
            next_look = patience.waited + every
            looks += 1
            check()
            first = isinstance(_peers[0], World) and not this.elastic and ends.who_has_finished(1)
            if first and store.get(key) is None:
                ends.tell_of_an_exchange(_waits_for(first), True)
                raise ValueError(_waits_for(first))
            if (now := store.get(f"pulse/{_peers[0].name}")) != pulse:
                pulse, changed = now, looks
            if (looks - changed) * every > job.heartbeat_timeout_seconds():
                raise ends.OthersError(
                    f"rank 0: no sign of life for {job.heartbeat_timeout_seconds():g} s, says rank "
                    f"{this.rank}: its process was killed or its link is dead"
                )
        if patience.should_say() and this.rank == 1:
            say(f"waiting for rank 0, which {doing}")
        patience.pause()


@contextlib.contextmanager
def together(run: Any, call: str) -> Iterator[None]:
    """Wraps a collective call: each process publishes its call, and a call that only some make ends
    the run."""
    run.begin(call)
    _calls.append(run)
    try:
        yield
    finally:
        _calls.pop()
        run.end()


def introduce() -> None:
    """Publishes the name and the addresses of this process."""
    this = job.current()
    if this is not None and not this.elastic:
        own = json.dumps([ends.name(), connections.addresses()])
        _connected[0].set(f"addresses/{this.rank}", own)


def _names_of_addresses(this: job.Job) -> dict[str, str]:
    published = (_connected[0].get(f"addresses/{rank}") for rank in range(this.size))
    introduced = [json.loads(text) for text in published if text]
    return {address: name for name, addresses in introduced for address in addresses}


@contextlib.contextmanager
def exchanging(kind: type[Exception] = RuntimeError) -> Iterator[None]:
    """Wraps exchanges: raises the cause of an error of Gloo, of this kind."""
    try:
        yield
    except kind as error:
        raise _cause_of(str(error)) from None


def _cause_of(text: str) -> Exception:
    """Returns the cause of a failed exchange: the first failure of the job, else a finished process
    that others wait for, else Gloo's message with names."""
    this = job.current()
    if this is None or this.elastic or not _connected:
        own, failure = f"rank {_peers[0].rank}: {_runtime.peer_error(text)}", None
        with contextlib.suppress(OSError):
            failure = ends.first_failure(_connected[0]) if _connected else None
        return ends.OthersError(own if failure is None else failure["cause"])
    own, failure = f"{ends.name()}: {_runtime.peer_error(text)}", None
    with contextlib.suppress(OSError):
        own = f"{ends.name()}: {_runtime.peer_error(text, _names_of_addresses(this))}"
        if ends.first_failure(store()) is None:
            if _calls:
                _calls[0].fail(own, in_exchange=True)
            else:
                name = ends.who_has_finished(this.size)
                ends.tell_of_an_exchange(_waits_for(name) if name else own, bool(name))
        failure = ends.first_failure(store())
    if failure is None:
        return ends.OthersError(own)
    return (ValueError if failure["blame"] == "caller" else ends.OthersError)(failure["cause"])


def _waits_for(name: str) -> str:
    return (
        f"{name} has finished, {ends.name()} waits for it: all processes have to make the same "
        "calls"
    )


def tensor_from(rank: int, tensor: Tensor | None, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Returns the tensor of process `rank` in all processes. The others pass None."""
    whole = (
        torch.empty(shape, dtype=dtype) if tensor is None else tensor.detach().cpu().contiguous()
    )
    # As bytes, because Gloo supports only some dtypes.
    flat = whole.reshape(-1).view(torch.uint8) if whole.numel() else whole.new_empty(0)
    if flat.numel():
        with exchanging():
            _peers[0].broadcast(flat, rank)
    return whole


def from_any(parcel: bytes) -> bytes:
    """Returns the bytes that some processes have and others (b"") lack, in all of them; b"" if all
    lack them."""
    sizes = [int(text) for text in texts(str(len(parcel)))]
    if 0 not in sizes or not any(sizes):
        return parcel
    rank = next(rank for rank, size in enumerate(sizes) if size)
    own = _peers[0].rank == rank
    data = torch.frombuffer(bytearray(parcel), dtype=torch.uint8) if own else None
    sent = tensor_from(rank, data, [sizes[rank]], torch.uint8)
    return parcel or sent.numpy().tobytes()


def largest(value: float) -> float:
    """Returns the largest of all processes' values."""
    if join() is None:
        return float(value)
    tensor = torch.tensor([float(value)], dtype=torch.float64)
    with exchanging():
        _peers[0].all_reduce_max(tensor)
    return float(tensor)


def is_same(text: str) -> bool:
    """Returns whether all processes have the same text. Only its checksum is sent."""
    found = float(zlib.crc32(text.encode()))
    tensor = torch.tensor([found, -found], dtype=torch.float64)
    with exchanging():
        _peers[0].all_reduce_max(tensor)
    return float(tensor[0]) == -float(tensor[1])


def texts(text: str) -> list[str]:
    """Returns the texts of all processes, by rank. No text may be empty."""
    own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(_peers[0].size)]
    with exchanging():
        _peers[0].all_gather(sizes, torch.tensor([own.numel()]))
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
    padded[: own.numel()] = own
    found = [torch.empty_like(padded) for _ in sizes]
    with exchanging():
        _peers[0].all_gather(found, padded)
    return [
        data[: int(size)].numpy().tobytes().decode()
        for data, size in zip(found, sizes, strict=True)
    ]


def first_error(this: job.Job | None, error: str) -> str:
    """Returns the first error of all processes of a job, or this one's without a job. "": none."""
    found = [f"-{error}"] if this is None else texts(f"-{error}")
    return next((text[1:] for text in found if text[1:]), "")


def values(own: Any) -> list[Any]:
    """Returns the values of all processes, by rank. They must be JSON."""
    return [json.loads(text) for text in texts(json.dumps(own))]
