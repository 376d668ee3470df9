"""A job whose processes change their plan between steps trains like one device."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import medley
from medley import _core

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
import changer
import exactness
import test_elastic
from outcomes import distance, recoveries, seen
from test_processes import TORCHRUN, run
from zoo import ZOO

pytestmark = [pytest.mark.multi, pytest.mark.slow]

SCRIPT = str(Path(changer.__file__))
STEPS = 5
MODELS = ["mlp", *(pytest.param(name, marks=pytest.mark.nightly) for name in ZOO if name != "mlp")]


@pytest.mark.parametrize("name", MODELS)
def test_plans_in_turn(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], exactness.ROWS)
        want = exactness.train_eager(model, batch, STEPS, lr=1e-3)
    done = run(
        [*TORCHRUN, f"--nproc-per-node={changer.DEVICES}", SCRIPT, str(tmp_path), name, str(STEPS)]
    )
    assert done.returncode == 0, done.stderr
    curve = torch.load(tmp_path / "curve.pt")
    assert math.isclose(curve.pop("evaluated"), want.losses[STEPS // 2 + 1], rel_tol=0.5)
    exactness.compare(exactness.Curve(**curve), want, model=name)
    with exactness.double_precision():
        resumed = medley.Trainer(
            model,
            graph,
            medley.Plan(changer.plans_of(graph)[0]),
            medley.AdamW(lr=1e-3, weight_decay=0.01),
            local=True,
            cluster=exactness.cluster(4),
        )
        assert resumed.load(tmp_path / "checkpoint").step == STEPS // 2 + 1
        losses = [resumed.step(batch).loss for _ in range(STEPS - resumed.steps)]
    got = exactness.Curve(
        want.losses[: STEPS - len(losses)] + losses, resumed.gradients(), resumed.parameters()
    )
    exactness.compare(got, want, model=name)


@pytest.mark.parametrize(
    "fault", [{}, {"device": "a/1/0", "step": 5}, {"late": "a/3/0", "first": "0"}]
)
def test_plans_in_turn_when_a_process_is_lost_or_late(
    fault: dict[str, Any], tmp_path: Path
) -> None:
    graph = medley.Graph(_core.Graph.parse(test_elastic.captured(), "graph"))
    plans = list(test_elastic.PLANS.values())
    test_elastic.prepare(tmp_path, graph, plans[0].plan(graph))
    for number, plan in enumerate(plans[1:], 1):
        (tmp_path / f"{number}.json").write_text(plan.plan(graph))
    changes = {fault.get("first", "1"): "1.json", "3": "2.json"}
    done = test_elastic.elastic(
        tmp_path, steps=8, changes=changes, pause=0.4, **{"step": -1, **fault}
    )
    assert done.returncode == 0, done.stderr
    detected = [line["detected"] for line in recoveries(tmp_path)]
    assert detected[:2] == ["request"] * 2
    assert len(detected) == 2 + ("device" in fault)
    assert distance(seen(tmp_path), test_elastic.one_device(graph.text(), 8)) <= 1e-10
