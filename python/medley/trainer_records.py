"""Reports of a trainer: its devices, the needs of its plan, and the history of its run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from medley import _core
from medley.drift import Drift
from medley.files import write_atomically
from medley.metrics import rows_by_kind
from medley.run import elastic

if TYPE_CHECKING:
    from medley.engine import Engine
    from medley.run.sessions import Session


class Records:
    """The part of a trainer that reports on its run."""

    engine: Engine
    session: Session

    @property
    def ranks(self) -> tuple[int, int] | None:
        """The number of this process among those that train and their count, or None if the current
        plan does not use it."""
        return self.engine.ranks

    @property
    def is_alone(self) -> bool:
        """Whether all devices are threads of this process."""
        return self.engine.job is None and not self.is_elastic

    @property
    def is_elastic(self) -> bool:
        """Whether the run continues after processes are lost."""
        return self.session.is_elastic

    @property
    def is_first(self) -> bool:
        """Whether this process is the first, which prints and reports."""
        return self.engine.is_first

    @property
    def members(self) -> list[str]:
        """The devices whose processes are in the run, in an elastic one without those lost."""
        return elastic.member().members if self.is_elastic else self.engine.plan.devices

    @property
    def recoveries(self) -> int:
        """The number of times that the run has resumed with another plan or other members."""
        return elastic.member().generation if self.is_elastic else 0

    def traffic(self) -> dict[str, int]:
        """Returns by link ("lan:fast/0:out") the bytes that a step sends over it, as predicted."""
        graph, plan, machines = self.engine.graph.core, self.engine.plan.core, self.engine.machines
        rule = self.engine.optimizer.core(graph)
        found: Any = _core.simulate(_core.Program(graph, plan, machines, rule), machines)
        return dict(found["bytes_by_link"])

    def shares_of_kinds(self) -> dict[str, float]:
        """Returns the share of the rows by device type. Each stage of a pipeline has all rows."""
        return rows_by_kind(self.engine.program, self.engine.machines)

    def memory(self) -> dict[str, dict[str, Any]]:
        """Returns bytes by device: `persistent`, the `peak` and its place, and the additional bytes
        while a checkpoint is written (`saving`)."""
        saving = self.session.whole.saver.write_plan.held_bytes
        uses = zip(self.engine.run.device_names, self.engine.run.memory(), saving, strict=True)
        return {name: use | {"saving": held} for name, use, held in uses}

    def peak_bytes(self) -> dict[str, int]:
        """Returns the largest number of bytes so far on each emulated device of this process."""
        names = self.engine.run.device_names
        own = range(len(names)) if self.engine.job is None else [self.engine.job.rank]
        return dict(zip((names[i] for i in own), self.engine.run.peak_bytes(), strict=False))

    def drift(self) -> list[Drift]:
        """Returns the drift of op times on this process's devices from the profile, so far."""
        return (
            [] if self.engine.drift is None else [Drift(*row) for row in self.engine.drift.rows()]
        )

    def program_text(self) -> str:
        """Returns the lowered program, identical on every device."""
        return self.engine.program.text()

    def trace_json(self) -> str:
        """Returns a trace of the last step on the devices of this process, for Perfetto
        (https://ui.perfetto.dev), in times of the steady clock. Requires `trace=True`."""
        return str(self.engine.run.trace_json())

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes trace_json() to a file."""
        write_atomically(path, self.trace_json())
