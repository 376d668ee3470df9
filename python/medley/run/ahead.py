"""Plans for the loss of any node or process, computed in parallel with training. The process of a
plan's first device starts `python -m medley.run.ahead`, which uses only idle CPU time and publishes
its results in the store, where they outlive that process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from medley.plan import Plan
from medley.run.beside import Beside
from medley.run.nodes import nodes_of
from medley.run.replanning import replan_all, subject_of_text, text_of_subject
from medley.run.threads import behind_all_others

if TYPE_CHECKING:
    from medley.engine import Engine


def key_of(devices: Sequence[str]) -> str:
    """Returns the key of the plan for these devices."""
    return "ahead/" + hashlib.sha256(",".join(sorted(devices)).encode()).hexdigest()[:32]


class PlansAhead:
    """The plans of all engines for the devices that remain of `members` after a loss, published as
    (key, texts as JSON) once they are found."""

    def __init__(
        self,
        engines: Sequence[Engine],
        plans: Sequence[Plan],
        members: Sequence[str],
        tell: Callable[[str, str], None],
    ) -> None:
        self._engines, self._plans, self._members = engines, plans, list(members)
        self._tell = tell
        self._search: Beside | None = None
        self._steps = 0

    def note_step(self) -> None:
        """Publishes new results at the start of a step. The first step starts without planning, so
        that training resumes immediately after a loss."""
        self._steps += 1
        if self._steps == 2:
            self._start()
        if self._search is None:
            return
        ended = self._search.is_over
        for devices, texts in self._search.values():
            self._tell(key_of(devices), json.dumps(texts))
        if ended:
            self.close()

    def close(self) -> None:
        """Ends the planning."""
        if self._search is not None:
            self._search.close()
            self._search = None

    def _start(self) -> None:
        kept = set(self._plans[0].devices)
        asked = [left for left in left_of(self._members) if not kept.issubset(left)]
        subjects = [text_of_subject(engine) for engine in self._engines if asked]
        plans = [(plan.text, plan.profile and str(plan.profile)) for plan in self._plans]
        # Without this, and after an error such as a full disk, planning happens after a loss.
        with contextlib.suppress(OSError):
            if asked and None not in subjects:
                self._search = Beside(__name__, json.dumps([subjects, plans, asked]))


def left_of(members: Sequence[str]) -> Iterator[list[str]]:
    """Yields the remaining devices without each node, then without each of several devices of a
    node."""
    nodes = nodes_of(members)
    single = [[name] for node in nodes if len(node) > 1 for name in node]
    for lost in nodes + single:
        if len(lost) < len(members):
            yield [name for name in members if name not in lost]


def main() -> None:
    """Reads a request, and writes a line for each list of devices."""
    behind_all_others()
    texts, before, asked = json.load(sys.stdin)
    subjects = [subject_of_text(text) for text in texts]
    known = [Plan(text, profile=profile) for text, profile in before]
    for devices in asked:
        with contextlib.suppress(ValueError):  # no plan exists
            plans = replan_all(subjects, known, devices)
            print(json.dumps([devices, [plan.text for plan in plans]]), flush=True)


if __name__ == "__main__":
    main()
