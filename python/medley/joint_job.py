"""The processes of a job under several plans: which device each is, and its rank in each plan."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch.distributed as dist

from medley import _runtime
from medley.cluster import Cluster
from medley.plan import Plan
from medley.run import exchange, job


class JointJob:
    """`this`: the process in the order of the job; `plans`: one for each objective by name."""

    def __init__(self, this: job.Job | None, plans: Mapping[str, Plan]) -> None:
        """Raises ValueError if a plan has other devices than the job, or the job is elastic."""
        self.this = this
        self._devices: list[str] = []  # by rank
        self._orders: dict[str, list[int]] = {}  # by objective: the rank of each device of the plan
        if this is None:
            return
        if this.elastic:
            raise ValueError(
                "JointTrainer: found an elastic job, expected one without --elastic: a run of "
                "several objectives does not outlive a process; it resumes from its checkpoints"
            )
        names = exchange.texts(job.device_name() or "-")
        self._devices = names if "-" not in names else next(iter(plans.values())).devices
        for name, plan in plans.items():
            if sorted(plan.devices) != sorted(self._devices) or len(plan.devices) != this.size:
                raise ValueError(
                    f"objective {name!r}: found a plan for the devices {', '.join(plan.devices)}, "
                    f"expected all devices of the job: {', '.join(self._devices)}"
                )
            self._orders[name] = [self._devices.index(device) for device in plan.devices]

    def of(self, objective: str) -> contextlib.AbstractContextManager[None]:
        """Inside the block this process has its rank in the plan of an objective."""
        return exchange.reordered(self._orders.get(objective))

    def peers(self, machines: Cluster) -> _runtime.MovePeers | None:
        """Returns how the processes give each other state; None without a job."""
        if self.this is None:
            return None
        numbers = []
        for device in self._devices:
            number = machines.find(device)
            assert number is not None
            numbers.append(number)
        group = dist.group.WORLD
        assert group is not None
        seconds = exchange.TIMEOUT_SECONDS
        own = numbers[self.this.rank]
        return _runtime.MovePeers(group.group_name, numbers, own, 1000 * seconds)
