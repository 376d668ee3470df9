"""The overhead of the runtime: measured steps divided by the same steps replayed without it.

    python benchmarks/runtime_overhead.py [--steps 30] [--width 512] [--json FILE]

A GPT trains for real on one CPU device and on two (processes of one thread each, over Gloo). Every
device records the trace of each step. The replay uses only the durations of op runs and transfers:
ops follow each other immediately, and a transfer starts when the last of its devices has posted it.
The ratio is therefore the overhead of preparing, posting, waking and Python.

A transfer whose end a busy device detects late takes no time in the replay, so the ratio is rather
too high than too low. A step lasts from the start of the last device to the end of the last one.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import medley
from medley.cluster import parse_cluster
from medley_extras import models

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 50 us}
"""
WARM_UP = 3  # steps
AT_ONCE = 20.0  # microseconds: a shorter wait means that the transfer was complete
ROWS, TOKENS = 16, 64
MEGATRON = {
    "*.attention.qkv.*": "S(0.1, even)",
    "*.attention.out.weight": "S(1, even)",
    "*.mlp.up.*": "S(0, even)",
    "*.mlp.down.weight": "S(1, even)",
}


def cases(forward: list[str]) -> dict[str, dict[str, Any]]:
    """Returns pipelines by name, of a graph with these forward ops."""

    def mesh(*devices: int) -> dict[str, Any]:
        return {"mesh": {"devices": [f"a/{i}/0" for i in devices]}}

    half = ROWS // 2
    eighths = [{"rows": ROWS // 8}] * 8
    second = {**mesh(1), "first": forward[len(forward) // 2]}
    return {
        "one device": {"microbatches": [{"rows": ROWS}], "stages": [mesh(0)]},
        "one device, 8 micro-batches": {"microbatches": eighths, "stages": [mesh(0)]},
        "rows on two": {
            "microbatches": [{"rows": ROWS, "lengths": [half, half]}],
            "stages": [mesh(0, 1)],
        },
        "tensors on two": {
            "microbatches": [{"rows": ROWS}],
            "stages": [{**mesh(0, 1), "placements": MEGATRON}],
        },
        "a pipeline of two, 8 micro-batches": {
            "microbatches": eighths,
            "stages": [mesh(0), second],
            "schedule": "1f1b",
        },
    }


@dataclasses.dataclass(frozen=True)
class Event:
    """An event of a device in a step; times in microseconds."""

    kind: str  # "ops", "post", "wait"
    start: float
    duration: float = 0.0
    # its name, and its number of earlier occurrences in the step
    exchange: tuple[str, int] = ("", 0)


def events_of(trace: dict[str, Any]) -> list[Event]:
    """Returns the events of a device in order."""
    found: list[Event] = []
    waits: collections.Counter[str] = collections.Counter()
    posts: collections.Counter[str] = collections.Counter()
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in sorted(spans, key=lambda each: each["ts"] + each["dur"]):
        name, start, duration = event["name"], event["ts"], event["dur"]
        if event["cat"] == "waiting":
            found.append(Event("wait", start, duration, (name, waits[name])))
            waits[name] += 1
        elif "bytes" in event["args"]:
            found.append(Event("post", start, 0.0, (name, posts[name])))
            posts[name] += 1
        else:
            found.append(Event("ops", start, duration))
    return sorted(found, key=lambda each: each.start)


def transfer_times(devices: list[list[Event]]) -> dict[tuple[int, tuple[str, int]], float]:
    """Returns how long after its last post an exchange was done, by device."""
    posted: dict[tuple[str, int], float] = {}
    for events in devices:
        for event in events:
            if event.kind == "post":
                posted[event.exchange] = max(event.start, posted.get(event.exchange, event.start))
    return {
        (d, event.exchange): 0.0
        if event.duration < AT_ONCE
        else max(0.0, event.start + event.duration - posted[event.exchange])
        for d, events in enumerate(devices)
        for event in events
        if event.kind == "wait"
    }


def replay(devices: list[list[Event]]) -> float:
    """Returns when the last device is done, in microseconds."""
    took = transfer_times(devices)
    members = collections.Counter(e.exchange for d in devices for e in d if e.kind == "post")
    posted: dict[tuple[str, int], list[float]] = collections.defaultdict(list)
    clocks, places = [0.0] * len(devices), [0] * len(devices)
    moved = True
    while moved:
        moved = False
        for d, events in enumerate(devices):
            while places[d] < len(events):
                event = events[places[d]]
                if event.kind == "ops":
                    clocks[d] += event.duration
                elif event.kind == "post":
                    posted[event.exchange].append(clocks[d])
                elif len(posted[event.exchange]) < members[event.exchange]:
                    break
                else:
                    done = max(posted[event.exchange]) + took[d, event.exchange]
                    clocks[d] = max(clocks[d], done)
                places[d] += 1
                moved = True
    assert all(place == len(events) for place, events in zip(places, devices, strict=True))
    return max(clocks)


def make(width: int) -> tuple[torch.nn.Module, Any]:
    """Returns the model and its batch, the same at every call."""
    torch.manual_seed(0)
    return models.gpt(width=width, layers=6, positions=TOKENS, batch=ROWS)


def work(folder: Path, width: int, steps: int) -> None:
    """Trains as one device of the plan in a folder and writes there begin, end and trace of each
    step."""
    torch.set_num_threads(1)
    model, batch = make(width)
    trainer = medley.Trainer(
        model,
        medley.capture(model, batch),
        medley.Plan.load(folder / "plan.json"),
        medley.AdamW(lr=1e-4),
        cluster=parse_cluster(CLUSTER),
        keep_gradients=False,
        trace=True,
    )
    rows: list[tuple[float, float, str]] = []
    for _ in range(steps):
        begin = time.monotonic()
        trainer.step(batch)
        rows.append((begin, time.monotonic(), trainer.trace_json()))
    (folder / f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(rows))


def measure(pipeline: dict[str, Any], width: int, steps: int) -> tuple[float, float, list[float]]:
    """Returns the median step and the median replay in seconds, and the ratio of each step."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "pipelines": [pipeline],
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, "-m", "medley", "launch", str(folder / "plan.json"), __file__]
        command += ["--worker", name, "--width", str(width), "--steps", str(steps)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9].json"))]
    measured, replayed = [], []
    for step in range(WARM_UP, steps):
        rows = [rank[step] for rank in ranks]
        measured.append(max(end for _, end, _ in rows) - max(begin for begin, _, _ in rows))
        replayed.append(replay([events_of(json.loads(trace)) for _, _, trace in rows]) / 1e6)
    ratios = [a / b for a, b in zip(measured, replayed, strict=True)]
    return statistics.median(measured), statistics.median(replayed), ratios


def main() -> None:
    """Prints a table. As a worker, it trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker, options.width, options.steps)

    names = medley.capture(*make(options.width)).core.stable_names()
    forward = [name for name in names if "/~" not in name and not name.startswith("~")]
    figures = {}
    print(f"| plan | step | replayed | median ratio of {options.steps - WARM_UP} |")
    print("|---|---|---|---|")
    for name, pipeline in cases(forward).items():
        step, replayed, ratios = measure(pipeline, options.width, options.steps)
        ratio = statistics.median(ratios)
        figures[name] = {"step": step, "replayed": replayed, "ratio": ratio, "ratios": ratios}
        print(
            f"| {name} | {step * 1e3:.1f} ms | {replayed * 1e3:.1f} ms | {ratio:.3f} |", flush=True
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
