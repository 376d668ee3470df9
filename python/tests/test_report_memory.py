"""Memory in a report: all parts of the peak, and few lines for many devices."""

from __future__ import annotations

from medley_extras.report.collect import Content
from medley_extras.report.figures import memory_at_peak, memory_over_time
from medley_extras.report.trace import Trace

SIZES = {"KiB": 2**10, "MiB": 2**20}


# Devices of one type with one peak share a line, so that the legend stays short.
def test_memory_of_many_devices_has_a_line_per_peak() -> None:
    names = [f"a/0/{number}" for number in range(12)]
    peaks = [64] * 10 + [32, 32]
    content = Content(
        files={},
        plan={},
        explained={
            "stages": [
                {"devices": [{"device": n, "rows": 1, "microbatches": [1]} for n in names]},
            ]
        },
        simulated={"devices": [{"device": name, "device_type": "k"} for name in names]},
        memory=[
            {"device": name, "peak_bytes": peak} for name, peak in zip(names, peaks, strict=True)
        ],
        predicted=Trace([], {name: [(0, 1)] for name in names}),
    )
    lines = memory_over_time(content)["data"]
    assert [line["name"] for line in lines] == [
        "a/0/0 and 9 with its peak",
        "a/0/10 and 1 with its peak",
    ]


# More parts than there are colors: none is left out.
def test_memory_shows_all_parts() -> None:
    parts = {f"part{number}_bytes": 2**number for number in range(12)}
    memory = {"device": "a", **parts, "peak_bytes": sum(parts.values()), "available_bytes": 2**20}
    content = Content(
        files={},
        plan={},
        explained={"stages": [{"devices": [{"device": "a", "rows": 1, "microbatches": [1]}]}]},
        simulated={"devices": [{"device": "a", "device_type": "k"}]},
        memory=[memory],
        predicted=Trace([], {}),
    )
    figure = memory_at_peak(content)
    unit = SIZES[figure["layout"]["xaxis"]["title"]["text"][-4:-1]]
    drawn = round(sum(bars["x"][0] for bars in figure["data"]) * unit)
    assert drawn == memory["peak_bytes"]
    assert len({bars["marker"]["color"] for bars in figure["data"]}) == len(parts)
