"""Where a trainer runs, what its plan needs, and what its run did."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from medley.drift import Drift
from medley.files import write_atomically
from medley.metrics import rows_by_kind

if TYPE_CHECKING:
    from medley.engine import Engine
    from medley.run.sessions import Session


class Records:
    """The part of a trainer that tells of its run."""

    engine: Engine
    session: Session

    @property
    def ranks(self) -> tuple[int, int] | None:
        """The number of this process among those that train now, and how many these are; None if
        the plan of now does not use it."""
        return self.engine.ranks

    @property
    def is_alone(self) -> bool:
        """Whether all devices are threads of this process."""
        return self.engine.job is None and not self.is_elastic

    @property
    def is_elastic(self) -> bool:
        """Whether it goes on when processes are lost."""
        return self.session.is_elastic

    @property
    def is_first(self) -> bool:
        """Whether this process speaks for all."""
        return self.engine.is_first

    def shares_of_kinds(self) -> dict[str, float]:
        """Returns by kind of device its part of the rows; each stage of a pipeline has them all."""
        return rows_by_kind(self.engine.program, self.engine.machines)

    def memory(self) -> dict[str, dict[str, Any]]:
        """Returns, by device, the bytes that last (`persistent`), the `peak` and where that is, and
        what may be held beside it while a checkpoint is written (`saving`)."""
        saving = self.session.whole.saver.deal.held_bytes
        uses = zip(self.engine.run.device_names, self.engine.run.memory(), saving, strict=True)
        return {name: use | {"saving": held} for name, use, held in uses}

    def peak_bytes(self) -> dict[str, int]:
        """Returns the most bytes that each emulated device of this process has had so far."""
        names = self.engine.run.device_names
        own = range(len(names)) if self.engine.job is None else [self.engine.job.rank]
        return dict(zip((names[i] for i in own), self.engine.run.peak_bytes(), strict=False))

    def drift(self) -> list[Drift]:
        """Returns how far the ops of this process's devices are from the profile, so far."""
        return (
            [] if self.engine.drift is None else [Drift(*row) for row in self.engine.drift.rows()]
        )

    def program_text(self) -> str:
        """Returns the lowered program, the same on every device."""
        return self.engine.program.text()

    def trace_json(self) -> str:
        """Returns what the devices of this process did in the last step, for Perfetto
        (https://ui.perfetto.dev), in times of the steady clock. Needs `trace=True`."""
        return str(self.engine.run.trace_json())

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes trace_json() to a file."""
        write_atomically(path, self.trace_json())
