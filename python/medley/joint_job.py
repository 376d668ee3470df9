"""The processes of a job under several plans: which device each is, and its rank in each plan."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from medley import _runtime
from medley.cluster import Cluster
from medley.plan import Plan
from medley.run import exchange, job
from medley.run.objectives import move_peers, order_of


class JointJob:
    """`this`: the process in the order of the job; `plans`: one for each objective by name."""

    def __init__(self, this: job.Job | None, plans: Mapping[str, Plan]) -> None:
        """Raises ValueError if a plan has other devices than the job."""
        self.this = this
        self._devices: list[str] = []  # by rank
        self.orders: dict[str, list[int]] = {}  # of the ranks of a plan's devices, by objective
        if this is None or (this.elastic and job.joins_later()):  # the run has other plans
            return
        names = exchange.texts(job.device_name() or "-")
        self._devices = names if "-" not in names else next(iter(plans.values())).devices
        for name, plan in plans.items():
            if sorted(plan.devices) != sorted(self._devices) or len(plan.devices) != this.size:
                raise ValueError(
                    f"objective {name!r}: found a plan for the devices {', '.join(plan.devices)}, "
                    f"expected all devices of the job: {', '.join(self._devices)}"
                )
            if (order := order_of(plan, self._devices)) is not None:
                self.orders[name] = order
        if this.elastic and len(plans) > 1 and job.copies_are_asked_for():
            raise ValueError(
                "--second-homes-every: found a run of several objectives, expected one of a single "
                "objective, or 0: what only a lost device had comes back from the newest checkpoint"
            )
        surviving = [name for name, plan in plans.items() if plan.survive > 0]
        if this.elastic and len(plans) > 1 and surviving:
            raise ValueError(
                f'objective "{surviving[0]}": plan: found "survive": 1 in an elastic run of '
                "several objectives, expected 0: nothing of them is copied to a second device; "
                "what only a lost device had comes back from the newest checkpoint"
            )

    def peers(self, machines: Cluster) -> _runtime.MovePeers | None:
        """Returns how the processes give each other state; None without a job."""
        if not self._devices:
            return None
        assert self.this is not None
        name = exchange.group_name()
        if not self.this.elastic:
            group = dist.group.WORLD
            assert group is not None
            name = group.group_name
        own, seconds = self._devices[self.this.rank], exchange.TIMEOUT_SECONDS
        return move_peers(machines, self._devices, own, name, seconds)
