"""Process groups that live as long as an epoch: the processes of an elastic run, connected to each
other and to nobody else. No group of all processes that ever were (WORLD) is behind them."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from medley.run import connections, threads

_SLICE = datetime.timedelta(milliseconds=20)  # how late a wait notices that all is over
_ENOUGH_SECONDS = 1.0  # for the threads of groups that have ended
_last: list[list[dist.ProcessGroup]] = []  # that nobody else can wait for


class Members:
    """Some processes, each with a rank, as a process group. `ended`: is set when it is over."""

    def __init__(
        self, name: str, rank: int, size: int, group: dist.ProcessGroup, ended: threading.Event
    ) -> None:
        self.name, self.rank, self.size = name, rank, size
        self._all = group
        self._ended = ended

    def broadcast(self, tensor: Tensor, rank: int) -> None:
        """Gives a tensor of one member to all."""
        self._finish(self._all.broadcast(tensor, rank))

    def all_gather(self, tensors: list[Tensor], own: Tensor) -> None:
        """Gives the tensors of all members to all."""
        self._finish(self._all.allgather([tensors], [own]))

    def all_reduce_max(self, tensor: Tensor) -> None:
        """Gives the largest of all members' values to all."""
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
        self._finish(self._all.allreduce([tensor], options))

    def _finish(self, work: dist.Work) -> None:
        """Waits. Gloo may leave what is sent over a connection that has ended waiting until the
        time-out of the group, minutes later: nobody waits for that."""
        while not work.is_completed() and not self._ended.is_set():
            with contextlib.suppress(RuntimeError):  # it takes longer, or fails, as is said below
                work.wait(_SLICE)
        if not work.is_completed():
            raise RuntimeError("the connections to the others have been ended")
        work.wait()


class EpochGroup(Members):
    """All members of an epoch, each with a rank; and groups of some of them.

    `store` is only used while a group is made, which takes all of its members.
    """

    def __init__(
        self, store: Store, name: str, rank: int, size: int, interface: str, seconds: float
    ) -> None:
        self._store = store
        self._timeout = datetime.timedelta(seconds=seconds)
        with threads.patient():
            self._device = (
                c10d.ProcessGroupGloo.create_device(interface=interface)
                if interface
                else c10d.ProcessGroupGloo.create_device(hostname=socket.gethostname())
            )
        self._sockets: list[int] = []  # of all groups, ours to close
        self._groups: dict[str, dist.ProcessGroup] = {}
        super().__init__(name, rank, size, self._make(name, rank, size), threading.Event())

    def _make(self, name: str, rank: int, size: int) -> dist.ProcessGroup:
        options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = self._timeout
        options._devices = [self._device]
        keys = PrefixStore(name, self._store)
        with connections.guarded(), connections.copied(self._sockets), threads.patient():
            backend = c10d.ProcessGroupGloo(keys, rank, size, options)
        group = dist.ProcessGroup(keys, rank, size)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        c10d._register_process_group(name, group)  # type: ignore[arg-type]
        self._groups[name] = group
        return group

    def make_groups(self, groups: dict[str, list[int]]) -> dict[str, str]:
        """Makes one process group per list of ranks, of those that have this process, unless it is
        there; returns the names under which c10d knows them."""
        names = {}
        for name, ranks in groups.items():
            if self.rank in ranks:
                names[name] = f"{self.name}/{name}"
                if names[name] not in self._groups:
                    self._make(names[name], ranks.index(self.rank), len(ranks))
        return names

    def first(self, size: int) -> Members:
        """Makes a group of so many of them, of which this is one."""
        name = f"{self.name}/first {size}"
        return Members(name, self.rank, size, self._make(name, self.rank, size), self._ended)

    def copies(self) -> list[int]:
        """Returns the sockets once more; whoever takes them closes them."""
        return [os.dup(each) for each in self._sockets]

    def abort(self) -> None:
        """Ends everything that the groups are in, here and, before long, at the other ends."""
        self._ended.set()
        for each in self._sockets:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each)) as copy:
                copy.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets go of the groups; nothing may be under way."""
        self.abort()
        for name in self._groups:
            c10d._unregister_process_group(name)  # type: ignore[arg-type]
        groups = list(self._groups.values())
        self._groups.clear()
        del self._all
        # A group waits for its threads, and Gloo may leave a send over a connection that has ended
        # waiting until the group's time-out: nobody else waits for that.
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
    """The processes of a job that does not change, as torch.distributed knows them."""

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
    """Processes whose ranks are those of another order."""

    def __init__(self, peers: World | Members, order: Sequence[int]) -> None:
        """`order`: the rank among the `peers` of each process."""
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
