"""The memory of races: a run with `--tune` begins under the plan that an earlier one has measured.

The first process reads and writes the entry, and all processes take its decision.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import time
from typing import TYPE_CHECKING

import torch

import medley
from medley import Plan
from medley.files import read_text
from medley.run import exchange, job
from medley.run.change import PlanError
from medley.run.patience import say
from medley.run.replanning import question
from medley_extras.recall import store
from medley_extras.recall.store import Entry, Key

if TYPE_CHECKING:
    from medley import Trainer
    from medley_extras.race.race import Race
    from medley_extras.search.costs import Corrections


class Memory:
    """The entry of one trainer. Without `remember`, and under `medley launch --no-memory`, it is
    neither read nor written."""

    def __init__(self, trainer: Trainer, remember: bool) -> None:
        is_first = trainer.is_first and trainer.recoveries == 0
        self._where = store.measured() if remember and is_first else None
        self._key = {} if self._where is None else key_of(trainer)
        self._allowed = 0.0
        self._entry: Entry | None = None

    def recall(self, trainer: Trainer) -> Entry | None:
        """Changes to the measured plan, if there is one that can run. All processes call this."""
        if trainer.is_alone or trainer.is_elastic:
            found = self._read(trainer)
        else:
            found = exchange.from_first(lambda: self._read(trainer), "reads the measured plan")
        if not found:
            return None
        self._entry = entry = Entry(**json.loads(found))
        plan = _plan_of(entry, trainer)
        if self._where is not None:
            say(f"{entry.sentence}; --no-memory races again")
        try:
            if plan.text != trainer.plan.text:
                trainer.change_plan(plan)
        except PlanError as error:
            self.ignore(str(error))
            return None
        return entry

    def ignore(self, problem: str) -> None:
        """Forgets the measured plan, which cannot run."""
        say(f"measured plan ignored: {problem}")
        self._entry = None

    def wants_race(self, allowed: float) -> bool:
        """Returns whether a race that may cost `allowed` steps can find more than the entry has."""
        self._allowed = allowed
        entry = self._entry
        return entry is None or (entry.untried > 0 and allowed >= 2 * entry.allowed)

    def keep(self, race: Race, plan: Plan, corrections: Corrections) -> None:
        """Writes the result of a race, which has chosen `plan`."""
        if self._where is None:
            return
        best = race.runners[race.best]
        entry = Entry(
            plan=plan.text,
            name=plan.strategy or "by hand",
            corrections=list(corrections),
            measured=best.measured,
            predicted=best.predicted,
            steps=len(best.times),
            untried=race.searches_cut + sum(r.verdict == "over budget" for r in race.runners),
            allowed=self._allowed,
            when=time.time(),
            host=platform.node(),
        )
        store.write(self._where, self._key, entry)

    def _read(self, trainer: Trainer) -> bytes:
        """Returns the entry as JSON, or nothing without one that can run here."""
        entry = None if self._where is None else store.read(self._where, self._key)
        if entry is None or (trainer.is_elastic and entry.untried > 0):
            return b""
        try:
            _plan_of(entry, trainer)
        except ValueError as error:
            say(f"measured plan ignored: {error}")
            return b""
        return json.dumps(dataclasses.asdict(entry)).encode()


def _plan_of(entry: Entry, trainer: Trainer) -> Plan:
    """Returns the plan of an entry. Raises ValueError if the trainer cannot run it."""
    now, engine = trainer.plan, trainer.engine
    given = Plan(entry.plan)
    plan = medley.plan(engine.graph, engine.machines, global_batch=now.global_batch, plan=given)
    needs_all = not (trainer.is_alone or trainer.is_elastic)
    missing = set(now.devices) - set(plan.devices) if needs_all else set()
    if others := sorted(missing | set(plan.devices) - set(now.devices)):
        raise ValueError(f"devices: found a difference in {', '.join(others)}")
    return dataclasses.replace(plan, profile=now.profile)


def key_of(trainer: Trainer) -> Key:
    """Returns everything that determines the plans of a trainer and their times."""
    engine, plan = trainer.engine, trainer.plan
    emulation = {name: each for name, each in job.emulation().items() if name != "ledger"}
    for file in [emulation["profile"]] if "profile" in emulation else []:
        emulation["profile"] = _hash(read_text(file))
    return {
        "graph": engine.graph.hash(),
        "cluster": engine.machines.hash,
        "devices": sorted(plan.devices),
        "question": {**question(plan)._asdict(), "strategy": ""},  # a race tries all
        "plan": "" if plan.strategy else _hash(plan.text),  # by hand
        "types": plan.to_dict().get("bf16_as", {}),
        "precision": torch.get_float32_matmul_precision(),
        "optimizer": _hash(repr(engine.optimizer.arguments(engine.graph.core))),
        "profile": "" if plan.profile is None else _hash(read_text(plan.profile)),
        "processes": _processes(trainer),
        "emulation": emulation,
        "threads": 0 if emulation else torch.get_num_threads(),
        "versions": {"medley": medley.__version__, "torch": str(torch.__version__)},
    }


def _processes(trainer: Trainer) -> list[str]:
    """Returns the way in which the processes communicate."""
    if trainer.is_alone:
        return ["threads"]
    return ["elastic" if trainer.is_elastic else "fixed", job.backend(), job.interface()]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
