"""The comparison of a measured step with the predicted one, as text."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from medley_extras.report.difference import COMPUTES, MESSAGES, PAUSES, WAITS, Difference, First
from medley_extras.report.draw import TIMES, percent, said

PARTS = {COMPUTES: "computes", PAUSES: "pauses"} | {part: f"waits for {part}" for part in WAITS}
HEADER = ["", "predicted", "measured", "difference", "share of the difference of the step"]


def sentence(found: Difference, stage_of: Callable[[str], str]) -> str:
    """Returns sentences about the first difference. `stage_of`: the name of a device's stage, or
    "" if there is one stage."""
    steps = f"The measured step is {said(found.measured, TIMES)}, predicted "
    steps += said(found.predicted, TIMES)
    first = found.first
    if first is None:
        return f"{steps}: they agree within 1 %."
    key = first.key
    stage = stage_of(key.device)
    place = f"{key.device} (stage {stage})" if stage else key.device
    mean = ""
    if first.count > 1:
        mean = (
            f" Its {first.count} {_class(first)} take {said(first.mean_measured, TIMES)} on "
            f"average, predicted {said(first.mean_predicted, TIMES)}."
        )
    cause = "computing" if key.part == COMPUTES else "pausing" if key.part == PAUSES else "waiting"
    others = ""
    if key.part == COMPUTES and first.others:
        plural = "device does" if first.others == 1 else "devices do"
        others = f" {first.others} other {plural} the same."
    direction = "longer" if found.change > 0 else "shorter"
    return (
        f"{steps}. They first differ at {place}, which {_piece(first)}, predicted "
        f"{said(first.predicted.time, TIMES)}.{mean} Its {cause} explains "
        f"{percent(first.share, 0)} of the {said(abs(found.change), TIMES)} by which the step is "
        f"{direction}.{others}"
    )


def _piece(first: First) -> str:
    key, time = first.key, said(first.measured.time, TIMES)
    if key.part == PAUSES:
        return f"pauses {time} " + (f"before `{key.name}`" if key.name else "at the end")
    if key.part != COMPUTES:
        return f"waits {time} for `{key.name}`"
    what = key.category
    if what in ("forward", "backward"):
        what += f" of micro-batch {key.name.rpartition(' ')[2]}"
    part = f", part {key.ordinal + 1}" if key.ordinal else ""
    return f"computes {what}{part} for {time}"


def _class(first: First) -> str:
    key = first.key
    if key.part == PAUSES:
        return "pauses"
    if key.part == MESSAGES:
        return "waits for messages"
    return f"{key.category} calls" if key.part == COMPUTES else f"waits for {key.category}"


def rows(found: Difference, devices: list[str]) -> list[list[str]]:
    """Returns the rows of a table, with the devices in this order. The parts of each device add up
    to the step."""
    result = [["the step", *_numbers(found.predicted, found.measured), ""]]
    for total in sorted(found.totals, key=lambda each: devices.index(each.device)):
        share = percent(total.change / found.change, 0) if found.first else ""
        name = f"{escape(total.device)} {PARTS[total.part]}"
        result.append([name, *_numbers(total.predicted, total.measured), share])
    return result


def _numbers(predicted: int, measured: int) -> list[str]:
    relative = percent(measured / predicted - 1, sign="+") if predicted else ""
    return [said(predicted, TIMES), said(measured, TIMES), relative]
