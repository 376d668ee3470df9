"""The race of a run (`--tune`): the predicted and measured steps of its plans."""

from __future__ import annotations

import math
from typing import Any

from medley_extras.report.draw import (
    INSIDE,
    MUTED,
    STAGES,
    TIMES,
    Figure,
    draw_bars,
    draw_rows,
    safe,
    said,
    unit_for,
)

FORMAT = ("medley-race", 1)
PLAN_NUMBERS = ("predicted_seconds", "measured_seconds", "steps")
ROW_HEIGHT = 52  # of two bars


def check(entries: Any, path: str) -> dict[str, Any]:
    """Returns the content of race.json. Raises ValueError naming another file."""
    found = entries if isinstance(entries, dict) else {}
    plans = found.get("plans")
    rows = plans if isinstance(plans, list) and all(isinstance(row, dict) for row in plans) else []
    known = (found.get("format"), found.get("version")) == FORMAT
    numbers = [found.get("steps"), found.get("cost_steps")]
    numbers += [{"measured_seconds": 0, **row}.get(name) for row in rows for name in PLAN_NUMBERS]
    texts = [row.get(name) for row in rows for name in ("name", "verdict")]
    are_texts = all(isinstance(each, str) for each in texts)
    if not (known and rows and are_texts and all(map(_is_number, numbers))):
        raise ValueError(
            f"{path}: found no race, expected race.json of `medley launch --tune`, version 1"
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def note(race: dict[str, Any]) -> str:
    """Returns the cost of the race."""
    return (
        f"Plans in the order of the race. It took {race['steps']} steps of training and cost the "
        f"time of {race['cost_steps']:.1f} steps of the chosen plan."
    )


def figure(race: dict[str, Any]) -> Figure:
    """Returns two bars for each plan, one if it did not run."""
    plans = race["plans"]
    sides = {
        side: [1e9 * row.get(f"{side}_seconds", 0) for row in plans]
        for side in ("predicted", "measured")
    }
    unit = unit_for(max(map(max, sides.values())), TIMES)
    data = [
        draw_bars(
            [time / unit.size for time in times],
            [
                f"{safe(row['name'])}<br><span style='color:{MUTED}'>{safe(row['verdict'])}</span>"
                for row in plans
            ],
            {"color": fill},
            [said(time, TIMES) if time else "" for time in times],
            name=side,
            hovertext=[
                f"{safe(row['name'])}: {side} {said(time, TIMES)}"
                + (f", median of {row['steps']} steps" if side == "measured" else "")
                for row, time in zip(plans, times, strict=True)
            ],
            **INSIDE,
        )
        for fill, (side, times) in zip(STAGES[0], sides.items(), strict=True)
    ]
    return draw_rows(data, len(plans), f"step [{unit.name}]", ROW_HEIGHT, barmode="group")
