"""race.json: the results of a race, for `medley report --race`."""

from __future__ import annotations

import json
import math
import os

from medley.files import write_atomically
from medley.run.patience import say
from medley_extras.race.race import Race

FILE = "race.json"  # in the working directory


def save(race: Race, path: str | os.PathLike[str] = FILE) -> None:
    """Writes the results atomically. Training continues if the file is not writable."""
    try:
        write_atomically(path, text(race))
    except OSError as error:
        say(f"{error}; training continues")


def text(race: Race) -> str:
    """Returns the results as JSON. A plan that did not run has no measured step."""
    plans = [
        {"name": each.name, "predicted_seconds": each.predicted}
        | ({"measured_seconds": each.measured} if each.measured < math.inf else {})
        | {"steps": len(each.times), "verdict": each.verdict}
        for each in race.runners
    ]
    best = race.runners[race.best].measured
    found = {"format": "medley-race", "version": 1, "plans": plans, "steps": race.steps}
    return json.dumps(found | {"cost_steps": race.spent / best}, indent=2) + "\n"
