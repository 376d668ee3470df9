"""Iterations that others measured, predicted by the source of the program that ran them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from medley.cli.core import ask

ROOT = Path(__file__).resolve().parents[2]
EXCERPT = ROOT / "tests" / "data" / "sailor"
sys.path.insert(0, str(ROOT / "benchmarks" / "planner"))

from sailor_measured import BY_SOURCE, Simulator, errors, summary  # noqa: E402
from sailor_runs import read_runs  # noqa: E402


class OwnSimulator(Simulator):
    """Runs the core in this process."""

    def simulate(self, table: dict[str, Any], cluster: Path, plan: Path) -> Any:
        place = self.folder / "table.json"
        place.write_text(json.dumps(table))
        return ask(["simulate", "--layers", str(place), str(cluster), str(plan)])


@pytest.mark.parametrize(
    "campaign", ["OPT-350, first campaign", "OPT-350, second campaign", "GPT-Neo-2.7"]
)
def test_published_errors_are_those_of_the_program(tmp_path: Path, campaign: str) -> None:
    runs = [run for run in read_runs(EXCERPT, tmp_path) if run.campaign == campaign]
    assert len(runs) >= 11
    found = errors(OwnSimulator("", EXCERPT, tmp_path), runs, BY_SOURCE)
    row = summary(campaign, "runtime by its source", found)
    assert row in (ROOT / "benchmarks" / "planner" / "README.md").read_text()
