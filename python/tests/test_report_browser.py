"""Reports as a browser shows them, on a desk and on a phone, light and dark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import browser
import pytest

import medley
from medley.run import job
from medley_extras.models import gpt
from medley_extras.report.collect import collect
from medley_extras.report.layers import collect_layers, layers_page
from medley_extras.report.page import page

offline = pytest.importorskip("plotly.offline")

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
PIPELINES: dict[str, Any] = {
    "format": "medley-plan",
    "version": 1,
    "global_batch": 12,
    "pipelines": [
        {
            "microbatches": [{"rows": 4}, {"rows": 4}],
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
LAYERS = Path(__file__).resolve().parents[2] / "tests" / "data" / "layers"
DESK, PHONE = 1280, 420
VERDICTS = ("slower", "chosen", "cannot win")
RACE = {
    "format": "medley-race",
    "version": 1,
    "plans": [
        {"name": f"data-parallel-{name}", "predicted_seconds": 0.02, "steps": 3, "verdict": name}
        | ({} if name == VERDICTS[-1] else {"measured_seconds": 0.03})
        for name in VERDICTS
    ],
    "steps": 7,
    "cost_steps": 1.5,
}
NAMES = ("one", "several", "layers")

Measures = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser.find()
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Path]:
    """Reports of a plan with a measured trace, of several pipelines with the trace of a slower
    network, and of measured layers."""
    model, batch = gpt(batch=12)
    graph = medley.capture(model, batch)
    names = ("g.graph", "cluster.yaml", "plan.json", "pipelines.json")
    g, cluster, one, several = (folder / name for name in names)
    g.write_text(graph.text())
    cluster.write_text(CLUSTER)
    plan = medley.plan(graph, cluster, "data-parallel-proportional", 12, microbatches=3)
    plan.save(one)
    several.write_text(json.dumps(PIPELINES))
    (folder / "slower.yaml").write_text(CLUSTER.replace("latency: 20 us", "latency: 3 ms"))
    slower = medley.plan(graph, folder / "slower.yaml", plan=several)
    (folder / "race.json").write_text(json.dumps(RACE))
    race = str(folder / "race.json")
    traces = [folder / "trace.json", folder / "slower.json"]
    for ran, trace in zip((plan, slower), traces, strict=True):
        with job.emulated():
            trainer = medley.Trainer(model, graph, ran, local=True, trace=True)
        trainer.step(batch)
        trainer.save_trace(trace)
    plotly = offline.get_plotlyjs()
    layers = [str(LAYERS / name) for name in ("two_stages.json", "opt350.json", "mixed.yaml")]
    texts = [
        page(
            collect(str(one), str(g), str(cluster), compare=True, traces=traces[:1], race=race),
            plotly,
        ),
        page(collect(str(several), str(g), str(cluster), traces=traces[1:]), plotly),
        layers_page(collect_layers(*layers, compare=True), plotly),
    ]
    paths = [folder / f"{name}.html" for name in NAMES]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return dict(zip(NAMES, paths, strict=True))


@pytest.fixture(scope="module")
def light(pages: dict[str, Path], folder: Path) -> Measures:
    return browser.measure(pages, (DESK, PHONE), folder)


@pytest.fixture(scope="module")
def dark(pages: dict[str, Path], folder: Path) -> Measures:
    return browser.measure(pages, (DESK, PHONE), folder, dark=True)


BOTH = pytest.mark.parametrize("width", [DESK, PHONE])
EACH = pytest.mark.parametrize("name", NAMES)


@EACH
def test_a_browser_draws_all_figures(light: Measures, pages: dict[str, Path], name: str) -> None:
    count = pages[name].read_text().count('class="figure"')
    assert count >= 2 and light[name, DESK]["error"] == ""
    assert light[name, DESK]["drawn"] == count


@BOTH
@EACH
def test_nothing_is_beyond_the_edge_of_the_window(light: Measures, name: str, width: int) -> None:
    found = light[name, width]
    assert found["error"] == ""
    assert not found["wide"] and found["beyond"] == []


@BOTH
@EACH
def test_labels_do_not_overlap(light: Measures, name: str, width: int) -> None:
    assert light[name, width]["overlaps"] == []


@BOTH
@EACH
def test_legends_take_at_most_a_third_of_their_figure(
    light: Measures, name: str, width: int
) -> None:
    legends = light[name, width]["legends"]
    assert legends and max(legends) <= 1 / 3


@BOTH
@EACH
def test_every_row_of_tiles_is_full(light: Measures, name: str, width: int) -> None:
    rows = light[name, width]["tiles"]
    assert len({max(row) for row in rows}) == 1


@BOTH
@EACH
def test_links_of_the_contents_lead_to_all_sections(light: Measures, name: str, width: int) -> None:
    found = light[name, width]
    assert [link for link, works in found["links"]] == [f"#{each}" for each in found["sections"]]
    assert all(works for _, works in found["links"]), found["links"]


@BOTH
def test_the_timeline_is_right_below_the_tiles(light: Measures, width: int) -> None:
    found = light["one", width]
    tops = found["tops"]
    assert found["sections"][:2] == ["timeline", "measured"]
    assert {"cluster", "strategies", "race"} <= set(found["sections"])
    assert tops["banner"] < tops["contents"] < tops["tiles"] < tops["timeline"]
    assert sorted(tops.values()) == list(tops.values())
    assert light["several", width]["sections"][:2] == ["timeline", "measured"]


@BOTH
@EACH
def test_colors_follow_the_scheme_of_the_reader(
    light: Measures, dark: Measures, name: str, width: int
) -> None:
    assert light[name, width]["paper"] == "rgb(255, 255, 255)"
    assert max(map(int, dark[name, width]["paper"][4:-1].split(","))) < 48
    assert light[name, width]["faint"] == [] and dark[name, width]["faint"] == []
