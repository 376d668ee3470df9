"""Several objectives over one state: ranks of the processes under each plan, and the whole state
with its checkpoints."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from medley import _core, _runtime, checkpoint
from medley.checkpoint import Part, Wanted
from medley.cluster import Cluster
from medley.cursor import Cursor
from medley.engine import Engine
from medley.plan import Plan
from medley.run import exchange, job
from medley.run.objectives import order_of, reshard_peers
from medley.schedules import schedule_text
from medley.shared_state import SharedState, Value, shared_values
from medley.whole import Whole

_KIND = "joint"  # type of the optimizer in a checkpoint


class JointJob:
    """`this`: the process in the order of the job. `plans`: one per objective, by name."""

    def __init__(self, this: job.Job | None, plans: Mapping[str, Plan]) -> None:
        """Raises ValueError if a plan has other devices than the job."""
        self.this = this
        self._devices: list[str] = []  # by rank
        self.orders: dict[str, list[int]] = {}  # ranks of a plan's devices, by objective
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
                "--replicate-every: found a run of several objectives, expected one of a single "
                "objective, or 0: what only a lost device had comes back from the newest checkpoint"
            )
        surviving = [name for name, plan in plans.items() if plan.tolerate_node_loss > 0]
        if this.elastic and len(plans) > 1 and surviving:
            raise ValueError(
                f'objective "{surviving[0]}": plan: found "tolerate_node_loss": 1 in an elastic '
                f"run of "
                "several objectives, expected 0: nothing of them is copied to a second device; "
                "what only a lost device had comes back from the newest checkpoint"
            )

    def peers(self, machines: Cluster) -> _runtime.ReshardPeers | None:
        """Returns the connections by which the processes exchange state, or None without a job."""
        if not self._devices:
            return None
        assert self.this is not None
        own, seconds = self._devices[self.this.rank], exchange.TIMEOUT_SECONDS
        return reshard_peers(machines, self._devices, own, exchange.group_name(), seconds)


class JointWhole(Whole):
    """The state of engines that share it. Values of one objective are named "<objective>/..."."""

    def __init__(self, engines: Mapping[str, Engine], this: JointJob) -> None:
        super().__init__(engines)
        self._job = this

    def opened(self) -> None:
        super().opened()
        peers = self._job.peers(self.first.machines)
        shared = self.shared = SharedState(self.engines, peers)
        for name, engine in self.engines.items():
            # A weak reference lets the engine end with its trainer.
            evaluation = engine.evaluation
            evaluation.bring = functools.partial(SharedState.bring, weakref.proxy(shared), name)
            evaluation.fill = functools.partial(JointWhole.fill, weakref.proxy(self), name)

    def fill(self, objective: str, run: Any) -> None:
        """Gives an evaluation the values that only other objectives train."""
        assert self.shared is not None
        for kind, value in self.engines[objective].evaluation.lacking:
            if (giver := self.shared.giver(kind, value)) is not None:
                run.load(kind, value, self.engines[giver].read_one(kind, value))

    def tensors(self, kind: str) -> dict[str, Tensor]:
        """Returns copies of the shared tensors of a kind."""
        assert self.shared is not None
        found: dict[str, Tensor] = {}
        for name, engine in self.engines.items():
            own = [each for k, each in self.shared.owned(name) if k == kind]
            found |= engine.read_kind(kind, own)
        return found

    # --- checkpoints ---

    def description(self, data: Cursor | None) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": _KIND}
        for name, engine in self.engines.items():
            own = engine.optimizer.description() | {
                "step": engine.steps,
                "seed": engine.run.seed,
                "schedule": schedule_text(engine.optimizer.lr),
            }
            facts |= {f"{name}/{key}": value for key, value in own.items()}
        engines = self.engines.values()
        return super().description(data) | {
            "step": self.steps,
            "global_batch": max(engine.plan.global_batch for engine in engines),
            "optimizer": facts,
            "schedule": "",
            "graph": _hash_of_all(engine.graph.hash() for engine in engines),
            "plan": _hash_of_all(engine.plan.text for engine in engines),
        }

    def parts(self) -> list[Part]:
        assert self.shared is not None
        parts = []
        for name, engine in self.engines.items():
            write_plan = _core.WritePlan(engine.program, self.shared.written(name), f"{name}/")
            parts.append(Part(engine.run, write_plan, f"{name}."))
        return parts

    def wanted(
        self, runs: Mapping[str, Any], path: str, manifest: Any, parameters_only: bool = False
    ) -> list[Wanted]:
        shared = {name: shared_values(run) for name, run in runs.items() if run is not None}
        if shared and not parameters_only:
            self._check(path, manifest, {value for values in shared.values() for value in values})
        return [
            (runs[name], manifest.part(list(values), f"{name}/"), f"{name}/")
            for name, values in shared.items()
        ]

    def counts(self, manifest: Any) -> list[int]:
        return [int(manifest.optimizer[f"{name}/step"]) for name in self.engines]

    def seeds(self, manifest: Any) -> list[int]:
        return [int(manifest.optimizer[f"{name}/seed"]) for name in self.engines]

    def _check(self, path: str, manifest: _core.Manifest, known: set[Value]) -> None:
        """Raises ValueError for a checkpoint of other objectives, or with parameters outside
        `known`."""
        checkpoint.require_kind(path, manifest, _KIND)
        facts = manifest.optimizer
        there = {key.partition("/")[0] for key in facts if "/" in key}
        if there != set(self.engines):
            raise ValueError(
                f"{path}: found the objectives {', '.join(sorted(there))}, expected "
                f"{', '.join(sorted(self.engines))}"
            )
        for name, engine in self.engines.items():
            kind = engine.optimizer.description()["kind"]
            if (found := facts[f"{name}/kind"]) != kind:
                raise ValueError(
                    f"{path}: objective {name!r}: found the optimizer {found}, expected {kind}"
                )
        for kind, name, *_ in manifest.values:
            if kind == "parameter" and (kind, name) not in known:
                raise ValueError(f"{path}: {kind} {name!r}: no objective has it")


def _hash_of_all(texts: Iterable[str]) -> str:
    return checkpoint.text_hash("\n".join(texts))
