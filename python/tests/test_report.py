"""The report of a plan: its figures hold the numbers of `simulate`, `memory` and `compare`."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import medley
from medley import cli
from medley.cli.core import ask
from medley.plan import Explanation
from medley.run import job
from medley_extras.models import gpt
from medley_extras.report.collect import Content
from medley_extras.report.draw import COMMUNICATION, TIMES, said
from medley_extras.report.figures import timeline
from medley_extras.report.pipeline_figures import in_flight_over_time
from medley_extras.report.trace import Event, Trace

graph_objects = pytest.importorskip("plotly.graph_objects")

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 1}
  - {name: slow, count: 1, device: half, devices_per_node: 2}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 20 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""
DEVICES = ["fast/0/0", "slow/0/0", "slow/0/1"]
UNITS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}

PLANS = [
    {"name": "hap", "predicted_seconds": 0.02, "steps": 3, "verdict": "chosen"},
    {"name": "a<b", "predicted_seconds": 0.025, "steps": 0, "verdict": "cannot win"},
]
PLANS[0]["measured_seconds"] = 0.03
RACE = {"format": "medley-race", "version": 1, "plans": PLANS, "steps": 4, "cost_steps": 1.5}

Run = Callable[..., tuple[int, str, str]]


@dataclasses.dataclass
class Files:
    """The input files of a report."""

    graph: str
    cluster: str
    plan: str
    trace: str  # trace of an emulated run of the plan
    folder: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("report")
    model, batch = gpt(batch=12)
    graph = medley.capture(model, batch)
    (folder / "g.graph").write_text(graph.text())
    (folder / "cluster.yaml").write_text(CLUSTER)
    plan = medley.plan(
        graph, folder / "cluster.yaml", "data-parallel-proportional", 12, microbatches=3
    )
    plan.save(folder / "plan.json")
    with job.emulated():
        trainer = medley.Trainer(model, graph, plan, local=True, trace=True)
    trainer.step(batch)
    trainer.save_trace(folder / "trace.json")
    names = ("g.graph", "cluster.yaml", "plan.json", "trace.json")
    return Files(*(str(folder / name) for name in names), folder)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["medley", *arguments])
        code = cli.main()
        return code, *capsys.readouterr()

    return run


class Page(HTMLParser):
    """The figures of a page by section, its head, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.figures: dict[str, Any] = {}
        self.text: dict[str, str] = {}
        self.head: dict[str, str] = {}  # texts above the sections by tag or class
        self.references: list[str] = []
        self._part = ""
        self._section, self._in_figure, self._source = "", False, ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "section":
            self._section = given["id"] or ""
        if tag in ("h1", "p", "div", "nav"):
            self._part = given.get("class") or tag
        self._in_figure = tag == "script" and given.get("class") == "figure"

    def handle_endtag(self, tag: str) -> None:
        if self._in_figure:
            self.figures[self._section] = json.loads(self._source)
        self._in_figure, self._source = False, ""

    def handle_data(self, data: str) -> None:
        if self._in_figure:
            self._source += data
        elif self._section:
            self.text[self._section] = self.text.get(self._section, "") + data + " "
        elif self._part:
            self.head[self._part] = self.head.get(self._part, "") + data


def report(
    run: Run, files: Files, *more: str, summary: str = "data-parallel-proportional: 12 rows"
) -> Page:
    """Makes a report and reads it."""
    output = files.folder / "report.html"
    given = ["--graph", files.graph, "--cluster", files.cluster, "-o", str(output)]
    code, out, err = run("report", files.plan, *given, *more)
    assert (code, err) == (0, "")
    assert " ".join(out.split()).startswith(f"{output}: {summary}")  # at any width of the path
    return Page(output.read_text())


def unit(figure: dict[str, Any], axis: str = "xaxis") -> float:
    """Returns the size of one unit on an axis."""
    return UNITS[figure["layout"][axis]["title"]["text"].rpartition("[")[2].rstrip("]")]


def sums(figure: dict[str, Any], names: list[str], but: str = "") -> dict[str, int]:
    """Adds up the bars of each device."""
    found = dict.fromkeys(names, 0.0)
    for bars in figure["data"]:
        if bars["name"] != but:
            owners = bars.get("customdata", bars["y"])
            for owner, value in zip(owners, bars["x"], strict=True):
                found[owner] += value
    return {name: round(value * unit(figure)) for name, value in found.items()}


def test_figures_have_the_numbers_of_simulate(run: Run, files: Files) -> None:
    simulated = ask(["simulate", files.graph, files.cluster, files.plan])
    page = report(run, files)
    by_device = {row["device"]: row for row in simulated["devices"]}
    computes = {name: row["computes_nanoseconds"] for name, row in by_device.items()}
    waits = {name: row["waits_nanoseconds"] for name, row in by_device.items()}

    times = page.figures["times"]
    assert sums(times, DEVICES, but="waits") == computes
    all_time = sums(times, DEVICES)
    assert {name: all_time[name] - computes[name] for name in DEVICES} == waits

    steps = page.figures["timeline"]
    bars = [trace for trace in steps["data"] if trace["width"] == 0.5 and trace["name"] != "waits"]
    assert sums({**steps, "data": bars}, DEVICES) == computes
    ends = [b + x for bar in steps["data"] for b, x in zip(bar["base"], bar["x"], strict=True)]
    assert round(max(ends) * unit(steps)) == simulated["step_nanoseconds"]
    forward = next(bar for bar in steps["data"] if bar["name"] == "forward")
    assert set(forward["text"]) == {"0", "1", "2"}

    links = page.figures["traffic"]
    (bar,) = links["data"]
    assert dict(zip(bar["y"], bar["x"], strict=True)) == pytest.approx(
        {link["link"]: link["bytes"] / unit(links) for link in simulated["links"]}
    )


def test_figures_have_the_numbers_of_memory(run: Run, files: Files) -> None:
    rows = ask(["memory", files.graph, files.cluster, files.plan])
    page = report(run, files)
    peaks = {row["device"]: row["peak_bytes"] for row in rows}
    assert sums(page.figures["memory_at_peak"], DEVICES) == peaks
    over_time = page.figures["memory"]
    size = unit(over_time, "yaxis")
    assert {line["name"]: round(max(line["y"]) * size) for line in over_time["data"]} == peaks


def test_shares_are_the_rows_of_the_plan(run: Run, files: Files) -> None:
    plan = medley.Plan.load(files.plan).to_dict()
    lengths = [each["lengths"] for each in plan["pipelines"][0]["microbatches"]]
    shares = report(run, files).figures["shares"]
    assert [bar["x"] for bar in shares["data"]] == lengths


def test_strategies_are_those_of_compare(run: Run, files: Files) -> None:
    compared = ask(["compare", files.graph, files.cluster, "--global-batch", "12"])
    figure = report(run, files, "--compare").figures["strategies"]
    (bar,) = figure["data"]
    found = dict(zip(bar["y"], (round(x * unit(figure)) for x in bar["x"]), strict=True))
    step = ask(["simulate", files.graph, files.cluster, files.plan])["step_nanoseconds"]
    assert found == {"this plan": step} | {
        row["strategy"]: row["step_ns"] for row in compared["strategies"]
    }


def test_the_head_ranks_the_plan(run: Run, files: Files) -> None:
    compared = ask(["compare", files.graph, files.cluster, "--global-batch", "12"])
    simulated = ask(["simulate", files.graph, files.cluster, files.plan])
    step, bound = simulated["step_nanoseconds"], compared["lower_bound_ns"]
    head = report(run, files, "--compare").head
    assert head["h1"].strip() == f"Training plan: GPT on 3 devices, {said(step, TIMES)} per step"
    assert (
        f"The step is {100 * (step / bound - 1):.0f} % above the lower bound of the search"
        in (head["reason"])
    )
    count = sum(simulated["ops_by_source"].values())
    assert head["banner"].startswith(f"0 of {count:,} ops with measured times.")
    assert f"medley profile {files.graph} {files.cluster} -o profile.json" in head["banner"]
    alone = report(run, files).head["reason"]
    assert "above the lower bound" not in alone and "--compare" in alone


# The emulation does to the nanosecond what the simulator says.
def test_page_compares_measured_and_predicted(run: Run, files: Files) -> None:
    page = report(run, files, "--trace", files.trace)
    alone = report(run, files).figures["timeline"]
    both = page.figures["timeline"]
    assert sums(both, DEVICES) == {name: 2 * time for name, time in sums(alone, DEVICES).items()}
    labels = [text.partition("<br>")[0] for text in both["layout"]["yaxis"]["ticktext"]]
    assert labels == 2 * DEVICES
    for bars in both["data"]:  # the rows of the measured step are below the predicted ones
        rows = sorted(zip(bars["y"], bars["base"], bars["x"], strict=True))
        half = len(rows) // 2
        expected = [(y + len(DEVICES), *times) for y, *times in rows[:half]]
        assert rows[half:] == [pytest.approx(row) for row in expected]
    step = said(
        ask(["simulate", files.graph, files.cluster, files.plan])["step_nanoseconds"], TIMES
    )
    agree = f"The measured step is {step}, predicted {step}: they agree within 1 %."
    assert agree in page.text["timeline"]
    assert "+0.0 %" in page.text["measured"] and "-" not in page.text["measured"]
    labels = page.figures["times"]["data"][0]["y"]
    assert labels == [
        [name for name in DEVICES for _ in range(2)],
        ["predicted", "measured"] * len(DEVICES),
    ]


# A run of twice the time is reported as +100 %, for every start of its clock.
def test_measured_that_took_longer_is_said(run: Run, files: Files) -> None:
    entries = json.loads(Path(files.trace).read_text())
    for entry in entries["traceEvents"]:
        if entry["ph"] == "X":
            entry["ts"] = 1e9 + 2 * entry["ts"]
            entry["dur"] *= 2
    slow = files.folder / "slow.json"
    slow.write_text(json.dumps(entries))
    page = report(run, files, "--trace", str(slow))
    found = page.text["measured"]
    changes = re.findall(r"[+-]\S+ %", found)
    assert len(changes) > 2 * len(DEVICES) and set(changes) == {"+100.0 %"}
    text = " ".join(page.text["timeline"].split())
    assert "They first differ at" in text and " explains " in text
    assert len(page.figures["timeline"]["layout"]["shapes"]) == 3  # two frames and a line
    given = ["--graph", files.graph, "--cluster", files.cluster, "--trace", str(slow)]
    output = str(files.folder / "slow.html")
    code, out, _ = run("report", files.plan, *given, "-o", output)
    assert code == 0 and " ".join(out.split()).endswith(f"longer. Next: open {output} in a browser")
    code, out, _ = run("report", files.plan, *given, "-o", output, "--json")
    assert code == 0 and json.loads(out)["difference"].startswith("The measured step is")


def test_traces_of_processes_are_joined(run: Run, files: Files) -> None:
    whole = json.loads(Path(files.trace).read_text())
    paths = []
    for number in range(len(DEVICES)):
        path = files.folder / f"trace_{number}.json"
        mine = [
            entry for entry in whole["traceEvents"] if entry["ph"] == "M" or entry["pid"] == number
        ]
        path.write_text(json.dumps({"traceEvents": mine}))
        paths.append(str(path))
    together = report(run, files, "--trace", *paths).figures
    alone = report(run, files, "--trace", files.trace).figures
    assert together["times"] == alone["times"]


def test_page_is_one_file_with_valid_figures(run: Run, files: Files) -> None:
    page = report(run, files, "--compare", "--trace", files.trace)
    assert page.references == [f"#{section}" for section in page.text]
    assert len(page.figures) == 8
    for figure in page.figures.values():
        graph_objects.Figure(figure)  # raises for fields that plotly.js would ignore


def test_page_draws_a_race(run: Run, files: Files) -> None:
    race = files.folder / "race.json"
    race.write_text(json.dumps(RACE))
    page = report(run, files, "--race", str(race))
    figure = page.figures["race"]
    bars = {bars["name"]: [round(x * unit(figure)) for x in bars["x"]] for bars in figure["data"]}
    assert bars == {"predicted": [20_000_000, 25_000_000], "measured": [30_000_000, 0]}
    assert figure["data"][1]["text"] == ["30 ms", ""]
    assert [text.split("<br>")[0] for text in figure["data"][0]["y"]] == ["hap", "a&lt;b"]
    assert "took 4 steps of training and cost the time of 1.5 steps" in page.text["race"]
    given = ["--graph", files.graph, "--cluster", files.cluster, "--race"]
    wrong = [[{}], [], [1], 1, [{**PLANS[0], "measured_seconds": "1"}], [{**PLANS[0], "name": 1}]]
    wrong_steps = ({"steps": "4"}, {"cost_steps": math.inf})
    for change in ({"version": 2}, *({"plans": each} for each in wrong), *wrong_steps):
        race.write_text(json.dumps(RACE | change))
        code, _, err = run("report", files.plan, *given, str(race))
        assert code == 2
        assert err.startswith(f"{race}: found no race, expected race.json of `medley launch")


def test_names_are_not_read_as_html(run: Run, files: Files) -> None:
    strange = files.folder / "<b>&.json"
    shutil.copy(files.plan, strange)
    report(run, dataclasses.replace(files, plan=str(strange)))
    assert "&lt;b&gt;&amp;.json" in (files.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": "nowhere.json"}, "nowhere.json: found no such file"),
        ({"graph": "cluster"}, "cluster.yaml:2: found 'format', expected 'medley-graph'"),
        ({"trace": "plan"}, "plan.json: found no trace, expected what Trainer.save_trace()"),
    ],
)
def test_wrong_input_is_one_sentence(
    run: Run, files: Files, change: dict[str, str], message: str
) -> None:
    given = {key: getattr(files, value, value) for key, value in change.items()}
    wrong = dataclasses.replace(files, **given)
    output = files.folder / "none.html"
    arguments = ["--graph", wrong.graph, "--cluster", wrong.cluster, "--trace", wrong.trace]
    code, out, err = run("report", wrong.plan, *arguments, "-o", str(output))
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1
    assert not output.exists()


def test_trace_of_other_devices_is_refused(run: Run, files: Files) -> None:
    other = files.folder / "other.json"
    other.write_text(Path(files.trace).read_text().replace("slow/0/1", "slow/9/1"))
    given = ["--graph", files.graph, "--cluster", files.cluster, "--trace", str(other)]
    code, _, err = run("report", files.plan, *given)
    assert code == 2
    assert "found events of fast/0/0, slow/0/0, slow/9/1, expected fast/0/0, slow/0/0" in err
    code, _, err = run("report", files.plan, *given, files.trace)
    assert code == 2
    assert "found events of fast/0/0, which" in err


def test_trace_of_another_plan_is_refused(run: Run, files: Files) -> None:
    other = files.folder / "fewer.json"
    entries = json.loads(Path(files.trace).read_text())["traceEvents"]
    kept = [entry for entry in entries if not entry["name"].endswith("ward 2")]
    other.write_text(json.dumps({"traceEvents": kept}))
    given = ["--graph", files.graph, "--cluster", files.cluster, "--trace", str(other)]
    code, _, err = run("report", files.plan, *given)
    assert code == 2
    assert "found 4 forward and backward calls of fast/0/0, expected the 6 of this plan" in err


def test_json_names_the_sections(run: Run, files: Files) -> None:
    given = ["--graph", files.graph, "--cluster", files.cluster, "--json"]
    code, out, _ = run("report", files.plan, *given, "-o", str(files.folder / "r.html"))
    assert code == 0
    assert "timeline" in json.loads(out)["sections"]


def event(name: str, start: int, end: int, device: str = "a", computes: bool = True) -> Event:
    return Event(device, computes, name, name.partition(" ")[0], start, end)


def test_stages_have_their_colors_and_counts() -> None:
    order = [
        ["forward 0", "forward 1", "backward 0", "", "backward 1"],
        ["", "forward 0", "backward 0", "forward 1", "backward 1"],
    ]
    events = [
        event(name, 10 * i, 10 * i + 10, device)
        for device, names in zip("ab", order, strict=True)
        for i, name in enumerate(names)
        if name
    ]
    rows = [{"device": device, "rows": 2, "microbatches": [1, 1]} for device in "ab"]
    content = Content(
        files={},
        plan={},
        explained={"stages": [{"first": "", "devices": [row]} for row in rows]},
        simulated={"devices": [{"device": device, "device_type": "k"} for device in "ab"]},
        memory=[{"device": device} for device in "ab"],
        predicted=Trace(events, {}),
    )
    figure = timeline(content)
    names = [bars["name"] for bars in figure["data"]]
    assert names == [f"stage {s} {what}" for s in (0, 1) for what in ("forward", "backward")]
    assert len({bars["marker"]["color"] for bars in figure["data"]}) == 4
    assert [bars["text"] for bars in figure["data"]] == [["0", "1"]] * 4
    lines = in_flight_over_time(content)["data"]
    assert [line["name"] for line in lines] == ["stage 0: at most 2", "stage 1: at most 1"]


def test_a_pipeline_is_what_simulate_says(run: Run, files: Files) -> None:
    stages: list[dict[str, Any]] = [
        {"mesh": {"devices": ["fast/0/0"]}},
        {"mesh": {"devices": ["slow/0/0", "slow/0/1"]}, "rows": [2, 1]},
    ]
    stages[1]["first"] = "blocks.1.norm1/native_layer_norm#0"
    pipelines = [{"microbatches": [{"rows": 3}] * 4, "stages": stages}]
    plan = {"format": "medley-plan", "version": 1, "global_batch": 12, "pipelines": pipelines}
    path = files.folder / "stages.json"
    path.write_text(json.dumps(plan))
    simulated = ask(["simulate", files.graph, files.cluster, str(path)])
    page = report(
        run,
        dataclasses.replace(files, plan=str(path)),
        summary="written by hand: 12 rows a step on 3 devices, in 4 micro-batches",
    )
    computes = {row["device"]: row["computes_nanoseconds"] for row in simulated["devices"]}
    assert sums(page.figures["times"], DEVICES, but="waits") == computes
    names = [bars["name"] for bars in page.figures["timeline"]["data"]]
    for stage in range(2):
        assert {f"stage {stage} forward", f"stage {stage} backward"} <= set(names)
    lines = page.figures["in_flight"]["data"]
    assert [line["name"] for line in lines] == ["stage 0: at most 2", "stage 1: at most 1"]
    shares = page.figures["shares"]["data"]
    assert [bar["x"] for bar in shares] == [[3, 2, 1]] * 4
    assert "blocks.1.norm1/native_layer_norm#0" in page.text["stages"]


def kinds_by_color(page: Page) -> dict[str, set[str]]:
    """Returns the bars that have a color of communication."""
    found: dict[str, set[str]] = {}
    for figure in page.figures.values():
        for bars in figure["data"]:
            fill = bars.get("marker", {}).get("color")
            if fill in COMMUNICATION.values():
                found.setdefault(fill, set()).add(bars["name"].removesuffix("s"))
    return found


PIPELINES: dict[str, Any] = {
    "format": "medley-plan",
    "version": 1,
    "global_batch": 12,
    "pipelines": [
        {
            "microbatches": [{"rows": 4}, {"rows": 4}],
            "in_flight": [2, 1],
            "stages": [
                {"mesh": {"devices": ["fast/0/0"]}},
                {
                    "mesh": {"devices": ["slow/0/0"]},
                    "first": "blocks.1.norm1/native_layer_norm#0",
                },
            ],
        },
        {"microbatches": [{"rows": 4}], "stages": [{"mesh": {"devices": ["slow/0/1"]}}]},
    ],
}


def test_page_shows_several_pipelines(run: Run, files: Files) -> None:
    path = files.folder / "pipelines.json"
    path.write_text(json.dumps(PIPELINES))
    simulated = ask(["simulate", files.graph, files.cluster, str(path)])
    summary = "written by hand: 12 rows a step on 3 devices, in 3 micro-batches, 2 pipelines of"
    page = report(run, dataclasses.replace(files, plan=str(path)), summary=summary)

    drawn = page.figures["pipelines"]["data"]
    assert [bar["text"][0] for bar in drawn] == ["0/0: 1 CPU", "0/1: 1 half", "1/0: 1 half"]
    ends = [bar["base"][0] + bar["x"][0] for bar in drawn]
    assert (drawn[0]["base"], drawn[1]["base"], drawn[2]["base"]) == ([0], [ends[0]], [0])
    assert ends[1] == ends[2]

    syncs = page.figures["gradient_syncs"]
    bars = syncs["data"][-1]
    takes = [
        each["ends_nanoseconds"] - each["begins_nanoseconds"]
        for each in simulated["gradient_syncs"]
    ]
    assert [round(x * unit(syncs)) for x in bars["x"]] == takes
    assert set(bars["y"]) == {
        "gradient sync 0/0 + 1/0",
        "gradient sync 0/1 + 1/0",
        "gradient sync 0/0 + 0/1 + 1/0",
    }
    done = syncs["layout"]["shapes"][0]["x0"] * unit(syncs)
    for begin, x, sync in zip(bars["base"], bars["x"], simulated["gradient_syncs"], strict=True):
        before = min(begin + x, done / unit(syncs)) - begin
        assert round(max(0, before) * unit(syncs)) >= sync["overlapped_nanoseconds"]

    lines = page.figures["in_flight"]["data"]
    assert [(line["name"], line["yaxis"]) for line in lines] == [
        ("stage 0/0: at most 2", "y1"),
        ("stage 0/1: at most 1", "y1"),
        ("stage 1/0: at most 1", "y2"),
    ]
    assert page.figures["in_flight"]["layout"]["xaxis"]["anchor"] == "y2"
    times = page.figures["times"]
    others = next(bar for bar in times["data"] if bar["name"] == "waits for other pipelines")
    assert [round(x * unit(times)) for x in others["x"]] == [
        row["waits_for_pipelines_nanoseconds"] for row in simulated["devices"]
    ]
    assert [bar["x"] for bar in page.figures["shares"]["data"]] == [[4, 4, 4], [4, 4, 0]]
    drawn_kinds = {"all_reduce", "gradient_sync", "transfer"}
    assert kinds_by_color(page) == {COMMUNICATION[kind]: {kind} for kind in drawn_kinds}
    assert len(page.figures["timeline"]["layout"]["shapes"]) == 1


# The decisions of a plan, the unused devices, and advice.
def test_page_names_shards_and_unused_devices(run: Run, files: Files) -> None:
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": 12,
        "pipelines": [
            {
                "microbatches": [{"rows": 12, "lengths": [8, 4]}],
                "stages": [
                    {
                        "mesh": {"devices": ["fast/0/0", "slow/0/0"]},
                        "placements": {"tokens.weight": "S(0, even)"},
                    }
                ],
            }
        ],
    }
    path = files.folder / "sharded.json"
    path.write_text(json.dumps(plan))
    summary = "written by hand: 12 rows a step on 2 devices"
    page = report(run, dataclasses.replace(files, plan=str(path)), summary=summary)
    assert "slow/0/1" in page.text["stages"]
    assert "tokens.weight S(0, even) dim 0 sharded evenly" in page.text["sharded"]
    assert "medley profile" in page.head["banner"]
    assert "in_flight" not in page.figures  # of one micro-batch there is nothing to see


def test_explanation_is_html_in_a_notebook(files: Files) -> None:
    model, batch = gpt(batch=12)
    plan = medley.plan(medley.capture(model, batch), files.cluster, plan=files.plan)
    text = plan.explain()
    assert text.startswith("data-parallel-proportional: 12 rows a step")
    assert text._repr_html_() == f"<pre>{text}</pre>"  # contains no character to escape
    assert Explanation("<a>")._repr_html_() == "<pre>&lt;a&gt;</pre>"


LAYERS = Path(__file__).resolve().parents[2] / "tests" / "data" / "layers"


def test_a_plan_over_measured_layers_has_a_report(run: Run, tmp_path: Path) -> None:
    plan, output = str(LAYERS / "two_stages.json"), str(tmp_path / "report.html")
    table, cluster = str(LAYERS / "opt350.json"), str(LAYERS / "mixed.yaml")
    given = ["report", plan, "--cluster", cluster, "-o", output]
    code, out, err = run(*given, "--layers", table, "--compare")
    assert (code, err) == (0, "")
    summary = "64 rows a step on 8 devices, in 16 micro-batches through 2 stages."
    expected = f"{output}: {summary} Next: open {output} in a browser"
    assert out.split() == expected.split()
    page = Page(Path(output).read_text())
    assert list(page.figures) == ["times", "memory_at_peak"]
    assert "grid" in page.text["strategies"]
    assert re.search(r"The plan best is \d\.\d\dx faster than this plan", page.head["reason"])
    assert "`" not in "".join(page.text[name] for name in ("stages", "times", "memory_at_peak"))
    simulated = ask(["simulate", "--layers", table, cluster, plan])
    memory = ask(["memory", "--layers", table, cluster, plan])
    for number, row in enumerate(memory):
        stage = simulated["stages"][number]
        assert row["peak_bytes"] == stage["peak_bytes"]
        parts = ("state", "saved", "transient", "fixed")
        assert row["peak_bytes"] == sum(row[f"{part}_bytes"] for part in parts)
        drawn = sum(bar["x"][number] for bar in page.figures["memory_at_peak"]["data"])
        assert drawn * 2**30 == pytest.approx(row["peak_bytes"])
        spent = sum(bar["x"][number] for bar in page.figures["times"]["data"]) * 1e9
        keys = ("busy", "idle", "update")
        assert spent == pytest.approx(sum(stage[f"{key}_nanoseconds"] for key in keys))

    code, _, err = run(*given, "--layers", table, "--profile", "p.json")
    assert (code, err.strip()) == (2, "found --layers and --profile, expected one of them")
    code, _, err = run(*given)
    assert code == 2
    assert "one of the arguments --graph --layers is required" in err
    code, _, err = run(*given, "--layers", plan)
    assert code == 2
    assert err.startswith(f"{plan}: found unknown key")
