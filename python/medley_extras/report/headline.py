"""The head of a report: its title, the reason for the plan in a sentence or two, and the warning
about times that are not measured."""

from __future__ import annotations

from html import escape
from typing import Any

from medley_extras.report.collect import Content
from medley_extras.report.draw import SIZES, TIMES, percent, said

EVEN = "data-parallel-even"
CLEARLY = 0.03  # difference of two utilisations that explains a faster step
SAME = 1.0005  # ratio of two steps that are equal as printed


def title(model: str, devices: int, step: int) -> str:
    """Returns the heading of a report about a step of so many nanoseconds."""
    plural = "device" if devices == 1 else "devices"
    return f"Training plan: {model} on {devices} {plural}, {said(step, TIMES)} per step"


def reason(content: Content) -> str:
    """Returns sentences about the rank of the plan, the cause, and its distance from the bound."""
    utilisation = utilisation_of(content)
    if content.compared is None:
        return (
            f"Devices compute {percent(utilisation, 0)} of the step on average. Run "
            "`medley report` with `--compare` to rank this plan among all strategies and against "
            "the lower bound."
        )
    step = content.simulated["step_nanoseconds"]
    found = [row for row in content.compared["strategies"] if "infeasible" not in row]
    own = content.plan.get("strategy", "")
    others = [r for r in found if r["strategy"] != own or r["step_ns"] * SAME < step]
    others.sort(key=lambda row: row["step_ns"])
    sentences = [_rank(step, others, len(content.compared["strategies"]))]
    even = next((row for row in others if row["strategy"] == EVEN), None)
    rival = even or (others[0] if others else None)
    if rival is not None and step * SAME < rival["step_ns"]:
        sentences.append(_cause(content, utilisation, rival))
    bound = content.compared["lower_bound_ns"]
    if bound > 0:
        sentences.append(
            f"The step is {percent(step / bound - 1, 0)} above the lower bound of the search, "
            f"{said(bound, TIMES)}."
        )
    return " ".join(sentence for sentence in sentences if sentence)


def utilisation_of(content: Content) -> float:
    """Returns the share of the step that the devices of the cluster compute, on average."""
    step = content.simulated["step_nanoseconds"]
    devices = content.simulated["devices"]
    unused = len(content.explained.get("not_used", []))
    computes = sum(row["computes_nanoseconds"] for row in devices)
    return float(computes / step / (len(devices) + unused))


def _rank(step: int, others: list[dict[str, Any]], count: int) -> str:
    if not others:
        return "No other strategy fits."
    best = others[0]
    if best["step_ns"] * SAME < step:
        return (
            f"{best['strategy']} is {step / best['step_ns']:.2f}x faster than this plan, "
            f"{said(best['step_ns'], TIMES)} per step: plan with `--strategy {best['strategy']}`."
        )
    equal = [row["strategy"] for row in others if row["step_ns"] <= step * SAME]
    slower = [row for row in others if row["step_ns"] > step * SAME]
    rivals = slower[:1] + [row for row in slower[1:] if row["strategy"] == EVEN]
    against = " and ".join(
        f"{row['step_ns'] / step:.2f}x faster than {row['strategy']} "
        f"({said(row['step_ns'], TIMES)})"
        for row in rivals
    )
    rank = f"It has the shortest step of {count} strategies"
    rank += f", with {', '.join(equal)}" if equal else ""
    return f"{rank}: {against}." if against else f"{rank}."


def _cause(content: Content, utilisation: float, rival: dict[str, Any]) -> str:
    """Returns the figure in which the plan differs from a slower one."""
    name, other = rival["strategy"], rival["mean_utilisation"]
    if utilisation > other + CLEARLY:
        return (
            f"It wins because its devices are idle for less of the step: "
            f"{percent(1 - utilisation, 0)} on average, with {name} {percent(1 - other, 0)}."
        )
    links = content.simulated["links"]
    sent = sum(link["bytes"] for link in links if link["link"].endswith(":out"))
    if 0 < sent < rival["traffic_bytes"]:
        return (
            f"It wins because it sends less: {said(sent, SIZES)} per step, with {name} "
            f"{said(rival['traffic_bytes'], SIZES)}."
        )
    return ""


def banner(content: Content) -> str:
    """Returns the warning about times from data sheets as HTML, "" if all ops are measured."""
    by_source = content.simulated["ops_by_source"]
    count, analytic = sum(by_source.values()), by_source.get("analytic", 0)
    if not analytic:
        return ""
    graph, cluster = (escape(content.files[name]) for name in ("graph", "cluster"))
    return (
        f'<p class="banner" role="note"><b>{count - analytic:,} of {count:,} ops with measured '
        "times.</b> The other times are estimates from data sheets. Measure them with "
        f"<code>medley profile {graph} {cluster} -o profile.json</code>, then give "
        "<code>--profile profile.json</code> to <code>medley plan</code> and "
        "<code>medley report</code>.</p>"
    )
