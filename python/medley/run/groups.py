"""Process groups of one generation: the processes of an elastic run, connected only to each other,
without a group of all processes (WORLD)."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import threading
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from medley.run import connections, threads

_SLICE = datetime.timedelta(milliseconds=20)  # delay of a wait in detecting the end
_ENOUGH_SECONDS = 1.0  # for the threads of ended groups
_last: list[list[dist.ProcessGroup]] = []  # whose threads are still running


class Members:
    """Some processes with ranks, as a process group. `ended` is set at its end."""

    def __init__(
        self, name: str, rank: int, size: int, group: dist.ProcessGroup, ended: threading.Event
    ) -> None:
        self.name, self.rank, self.size = name, rank, size
        self._all = group
        self._ended = ended
        self.check: Callable[[], None] = lambda: None  # raises if the others have failed

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        """Sends a tensor of one member to all."""
        self._finish(self._all.broadcast(tensor, rank))

    def all_gather(self, tensors: list[Tensor], own: Tensor) -> None:
        """Sends the tensors of all members to all."""
        self._finish(self._all.allgather([tensors], [own]))

    def all_reduce_max(self, tensor: Tensor) -> None:
        """Sends the largest of all members' values to all."""
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
        self._finish(self._all.allreduce([tensor], options))

    def _finish(self, work: dist.Work) -> None:
        """Waits for `work` in slices, until `ended`. Gloo may leave a send over an ended connection
        pending until the timeout of the group, minutes later."""
        while not work.is_completed() and not self._ended.is_set():
            with contextlib.suppress(RuntimeError):  # the work is pending or has failed, see below
                work.wait(_SLICE)
            if not work.is_completed():
                self.check()
        if not work.is_completed():
            raise RuntimeError("the connections to the others have been ended")
        work.wait()


class GenerationGroup(Members):
    """All members of a generation with ranks, and groups of some of them, which all of their
    members make by `store`. `limits`: seconds to connect, and of an operation."""

    def __init__(
        self, store: Store, name: str, rank: int, size: int, interface: str, limits: Sequence[float]
    ) -> None:
        self._store = store
        self._connects, self._timeout = (datetime.timedelta(seconds=each) for each in limits)
        at = {"interface": interface} if interface else {"hostname": socket.gethostname()}
        with threads.patient():
            self._device = c10d.ProcessGroupGloo.create_device(**at)
        self._sockets: list[int] = []  # sockets of all groups; this object closes them
        self._groups: dict[str, dist.ProcessGroup] = {}
        super().__init__(name, rank, size, self._make(name, rank, size), threading.Event())

    def _make(self, name: str, rank: int, size: int) -> dist.ProcessGroup:
        options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = self._connects  # a member that has left is never connected
        options._devices = [self._device]
        keys = PrefixStore(name, self._store)
        with connections.guarded(), connections.copied(self._sockets), threads.patient():
            backend = c10d.ProcessGroupGloo(keys, rank, size, options)
        backend._set_default_timeout(self._timeout)
        group = dist.ProcessGroup(keys, rank, size)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        c10d._register_process_group(name, group)  # type: ignore[arg-type]
        self._groups[name] = group
        return group

    def make_groups(self, groups: dict[str, list[int]]) -> dict[str, str]:
        """Makes the missing process groups among lists of ranks with this process. Returns their
        c10d names."""
        names = {}
        for name, ranks in groups.items():
            if self.rank in ranks:
                names[name] = f"{self.name}/{name}"
                if names[name] not in self._groups:
                    self._make(names[name], ranks.index(self.rank), len(ranks))
        return names

    def first(self, size: int) -> Members:
        """Makes a group of the first `size` members, with this one."""
        name = f"{self.name}/first {size}"
        made = Members(name, self.rank, size, self._make(name, self.rank, size), self._ended)
        made.check = self.check
        return made

    def copies(self) -> list[int]:
        """Returns copies of the sockets. The caller closes them."""
        return [os.dup(each) for each in self._sockets]

    def abort(self) -> None:
        """Ends all operations of the groups here, and soon after at the other ends."""
        self._ended.set()
        for each in self._sockets:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each)) as copy:
                copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the groups. Requires: no operation is pending."""
        self.abort()
        for name in self._groups:
            c10d._unregister_process_group(name)  # type: ignore[arg-type]
        groups = list(self._groups.values())
        self._groups.clear()
        del self._all
        # A group waits for its threads, and Gloo may leave a send over an ended connection pending
        # until the group's timeout. A thread takes over that wait.
        if threads.can_start():
            last = threading.Thread(target=groups.clear, daemon=True)
            last.start()
            last.join(_ENOUGH_SECONDS)
        else:  # they end with the process
            _last.append(groups)
        for each in self._sockets:
            os.close(each)
        self._sockets.clear()


class World:
    """The processes of a job of fixed size, as in torch.distributed."""

    name = ""

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        dist.broadcast(tensor, src=rank)

    def all_gather(self, tensors: list[Tensor], own: Tensor) -> None:
        dist.all_gather(tensors, own)

    def all_reduce_max(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)


class Reordered:
    """Processes with the ranks of another order."""

    def __init__(self, peers: World | Members, order: Sequence[int]) -> None:
        """`order`: the rank of each process among the `peers`."""
        self.peers = peers
        self._order = list(order)
        self.name, self.size = peers.name, peers.size
        self.rank = self._order.index(peers.rank)

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        self.peers.broadcast(tensor, self._order[rank])

    def all_gather(self, tensors: list[Tensor], own: Tensor) -> None:
        self.peers.all_gather([tensors[self._order.index(i)] for i in range(self.size)], own)

    def all_reduce_max(self, tensor: Tensor) -> None:
        self.peers.all_reduce_max(tensor)

    def ranks(self, ranks: Sequence[int]) -> list[int]:
        return [self._order[rank] for rank in ranks]
