"""Predictions of runs that lose a process equal those of one device, in all processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import medley

sys.path.insert(0, str(Path(__file__).parent))
import predictor
from outcomes import recoveries
from predictor import ROWS, STEPS
from test_elastic import CLUSTER, DEVICES
from test_processes import LAUNCH, run

pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly
SCRIPT = str(Path(predictor.__file__))


def even_plan(devices: list[str]) -> medley.Plan:
    """Returns an even plan."""
    stages = [{"mesh": {"devices": devices}}]
    pipelines = [{"microbatches": [{"rows": ROWS}], "stages": stages}]
    entries = {"format": "medley-plan", "version": 1, "global_batch": ROWS, "pipelines": pipelines}
    return medley.Plan.from_dict(entries | {"strategy": "data-parallel-even"})


def prepare(graph: medley.Graph, devices: list[str], folder: Path) -> Path:
    """Writes an even plan, its graph and its cluster."""
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(even_plan(devices).text)
    (folder / "model.graph").write_text(graph.text())
    (folder / "cluster.yaml").write_text(CLUSTER)
    return folder


def one_device(graph: medley.Graph) -> list[dict[str, Any]]:
    """Returns the predictions of one device."""
    model, batches = predictor.made()
    cluster = medley.cluster.parse_cluster(CLUSTER)
    chosen = medley.plan(graph, cluster, plan=even_plan(DEVICES[:1]))
    trainer = medley.Trainer(model, graph, chosen, medley.AdamW(lr=1e-2), local=True)
    found = []
    for batch in batches:
        trainer.step(batch)
        found.append(trainer.predict(batches[-1]))
    return found


def ran(folder: Path, *options: str, **fault: Any) -> dict[str, Any]:
    """Returns the results of each process, by device."""
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl"), *options]
    done = run([*LAUNCH, *log, str(folder / "plan.json"), SCRIPT, str(folder), json.dumps(fault)])
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == int("device" in fault)
    return {path.stem: torch.load(path) for path in folder.glob("*.pt")}


@pytest.mark.parametrize("restarts", [1, pytest.param(0, marks=NIGHTLY)])
@pytest.mark.parametrize(
    "fault", [{"predicts": True, "step": 2}, pytest.param({"step": 3}, marks=NIGHTLY)]
)
@pytest.mark.parametrize("who", [0, pytest.param(2, marks=NIGHTLY)])
def test_predictions_are_those_of_one_device(
    tmp_path: Path, who: int, fault: dict[str, Any], restarts: int
) -> None:
    model, batches = predictor.made()
    graph = medley.capture(model, batches[0], outputs="scores")
    folder = prepare(graph, DEVICES[:3], tmp_path / "run")
    seen = ran(folder, "--max-restarts", str(restarts), device=DEVICES[who], **fault)
    assert len(seen) == 2 + restarts
    want = one_device(graph)
    for device, each in seen.items():
        for got, expected in zip(each["found"], want, strict=True):
            assert got.keys() == expected.keys() == {"loss", "most", "scores"}
            assert got["loss"] == pytest.approx(expected["loss"], rel=1e-10)
            torch.testing.assert_close(got["scores"], expected["scores"], rtol=1e-10, atol=1e-12)
        joined = restarts and device == DEVICES[who].replace("/", "")
        missed = range(fault["step"] + ("predicts" in fault)) if joined else range(0)
        assert [step for step, _ in each["lacks"]] == list(missed)
        for _, sentence in each["lacks"]:
            assert "found no rows in this process, which joined the run later" in sentence
    assert len(want) == STEPS


def test_old_rows_are_dropped(tmp_path: Path) -> None:
    model, batches = predictor.made()
    graph = medley.capture(model, batches[0], outputs="scores")
    folder = prepare(graph, DEVICES[:2], tmp_path / "run")
    fault = {"device": DEVICES[1], "predicts": True, "step": 2, "most": 1}
    seen = ran(folder, "--max-restarts", "1", **fault)
    has = {device: ["scores" in each for each in given["found"]] for device, given in seen.items()}
    assert has == {"a00": [True] * STEPS, "a10": [False, *[True] * (STEPS - 1)]}
