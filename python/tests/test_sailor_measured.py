"""Iterations that others measured, predicted with the program's own constants: one set for all."""

import sys
from pathlib import Path
from typing import Any

import pytest

from medley.report.collect import ask

ROOT = Path(__file__).resolve().parents[2]
EXCERPT = ROOT / "tests" / "data" / "sailor"
sys.path.insert(0, str(ROOT / "benchmarks" / "planner"))

from sailor_measured import (  # noqa: E402
    ASKED,
    Simulator,
    errors,
    mean_error,
    print_table,
    read_runs,
)


class OwnSimulator(Simulator):
    """Asks the core of this process."""

    def simulate(self, table: dict[str, Any], cluster: Path, plan: Path) -> Any:
        place = self.folder / "table.json"
        place.write_text(print_table(table))
        return ask(["simulate", "--layers", str(place), str(cluster), str(plan)])


@pytest.mark.parametrize("campaign", ASKED)
def test_defaults_come_as_near_as_is_asked(tmp_path: Path, campaign: str) -> None:
    runs = [run for run in read_runs(EXCERPT, tmp_path) if run.campaign == campaign]
    assert len(runs) >= 11
    found = errors(OwnSimulator("", EXCERPT, tmp_path), runs, None)
    for which, asked in enumerate(ASKED[campaign]):
        assert 100 * mean_error(found, which) <= asked
