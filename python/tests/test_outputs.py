"""Other outputs of a model come back from a step as from one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from test_fewer_rows import LEARNING_RATE, ROWS, rows_of, trainer_of
from torch import Tensor, nn

import medley
from medley import _testing
from medley.ambient import in_eval_mode
from medley_extras.trackers import scalars

NEAR = 1e-10


class Classifier(nn.Module):
    """Returns scalars of three kinds, and tensors of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Any]:
        """Returns loss, accuracy, a count, a penalty, and results per row."""
        hidden = x
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        logits = self.last(hidden)
        right = logits.argmax(-1) == labels
        parts = {"penalty": self.last.weight.square().sum(), "entropy": -logits.softmax(-1).mean()}
        return {
            "loss": F.cross_entropy(logits, labels) + 0.1 * parts["penalty"],
            "accuracy": right.to(x.dtype).mean(),
            "right": right.sum(),
            "parts": parts,
            "logits": logits,
            "hidden": (hidden.unflatten(1, (2, 4)).transpose(0, 1), right),
        }


def classifier(rows: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and a batch."""
    torch.manual_seed(0)
    batch = {"x": torch.randn(rows, 8), "labels": torch.randint(0, 5, (rows,))}
    return Classifier(), batch


def plans(graph: medley.Graph) -> list[str]:
    """Returns hand-written and drawn plans: stages, unequal micro-batches, several pipelines."""
    names = [name for name in graph.core.stable_names() if "~" not in name]
    cut = {"first": names[len(names) // 2]}
    mesh = [{"mesh": {"devices": [f"a/{i}/0"]}} for i in range(4)]

    def pipeline(rows: list[int], stages: list[Any]) -> dict[str, Any]:
        return {"microbatches": [{"rows": each} for each in rows], "stages": stages}

    def plan(*made: dict[str, Any]) -> str:
        head = {"format": "medley-plan", "version": 1, "global_batch": ROWS}
        return medley.Plan.from_dict(head | {"pipelines": list(made)}).text

    return [
        plan(pipeline([1, 3, 2], [{"mesh": {"devices": ["a/0/0", "a/1/0", "a/2/0"]}}])),
        plan(pipeline([4, 2], [mesh[0], mesh[1] | cut])),
        plan(
            pipeline([3, 1], [mesh[0], mesh[1] | cut]),
            pipeline([1, 1], [{"mesh": {"devices": ["a/2/0", "a/3/0"]}}]),
        ),
        *(
            _testing.random_plan(graph.core.text(), [f"a/{i}/0" for i in range(4)], ROWS, seed)
            for seed in range(3)
        ),
    ]


_captured: list[medley.Graph] = []


def captured(model: nn.Module, batch: dict[str, Tensor]) -> medley.Graph:
    """Returns the graph of the classifier."""
    if not _captured:
        _captured.append(medley.capture(model, batch, outputs=["logits", "hidden.*"]))
    return _captured[0]


@pytest.mark.parametrize("number", range(6))
def test_outputs_are_those_of_one_device(number: int) -> None:
    with exactness.double_precision():
        model, batch = classifier(ROWS)
        graph = captured(model, batch)
        scalars = ["accuracy", "right", "parts.penalty", "parts.entropy"]
        tensors = ["logits", "hidden.0", "hidden.1"]
        assert graph.outputs == scalars + tensors
        trainer = trainer_of(model, graph, plans(graph)[number])
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
        for rows in (ROWS, 4, ROWS):
            part = rows_of(batch, rows)
            want = model(**part)
            found = trainer.step(part)
            optimizer.zero_grad()
            want["loss"].backward()
            optimizer.step()
            wanted = {"accuracy": want["accuracy"], "right": want["right"]}
            wanted |= {f"parts.{name}": each for name, each in want["parts"].items()}
            assert found.loss == pytest.approx(want["loss"].item(), rel=NEAR)
            assert {name: found.outputs[name] for name in scalars} == pytest.approx(
                {name: each.item() for name, each in wanted.items()}, rel=NEAR
            )
            for name, each in zip(tensors, (want["logits"], *want["hidden"]), strict=True):
                torch.testing.assert_close(
                    found.outputs[name], each.detach(), rtol=NEAR, atol=1e-14
                )


def test_scalars_of_a_tuple_have_positions_and_reach_callbacks(tmp_path: Path) -> None:
    def loss_of(model: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        logits = model(x, labels)["logits"]
        loss = F.cross_entropy(logits, labels)
        return loss, logits, logits.square().mean(), loss.exp()

    seen: list[medley.Metrics] = []

    class Seen(medley.Callback):
        def step(self, metrics: medley.Metrics) -> None:
            seen.append(metrics)

    with exactness.double_precision():
        model, batch = classifier(ROWS)
        with pytest.warns(UserWarning, match="output '3': it is no sum or mean over rows"):
            graph = medley.capture(model, batch, loss=loss_of)
        trainer = trainer_of(model, graph, plans(graph)[0])
        trainer.fit([batch], epochs=2, output=tmp_path, callbacks=[Seen()])
        first = loss_of(model, **batch)
    assert seen[0].outputs == {"2": pytest.approx(first[2].item(), rel=NEAR)}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["outputs"] for line in lines] == [dict(each.outputs) for each in seen]
    assert scalars(seen[1])["2"] == seen[1].outputs["2"]


def test_every_objective_returns_its_own() -> None:
    with exactness.double_precision():
        model, batch = classifier(ROWS)
        graph = captured(model, batch)
        plan = medley.Plan(plans(graph)[0])
        objective = medley.Objective(graph, plan, medley.SGD(lr=0.1))
        cluster = exactness.cluster(7)
        trainer = medley.JointTrainer(model, {"one": objective}, local=True, cluster=cluster)
        found = trainer.step("one", batch).outputs
        assert found["right"] == model(**batch)["right"].item()


class Echo(nn.Module):
    """Returns the values that both of its halves read, a constant, and its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns these."""
        twice, scale = x * 2, self.scale.exp()
        hidden = torch.tanh(self.first(twice)) * scale
        out = self.second(hidden + twice) * scale
        return {"loss": out.square().mean(), "twice": twice, "scale": scale, "x": x, "out": out}


def test_output_of_several_stages_is_returned_once() -> None:
    with exactness.double_precision():
        torch.manual_seed(0)
        model, batch = Echo(), {"x": torch.randn(ROWS, 8)}
        graph = medley.capture(model, batch, outputs="*")
        for plan in plans(graph):
            found = trainer_of(model, graph, plan).step(batch).outputs
            assert found.keys() == {"twice", "scale", "x", "out"}
            for name, each in model(**batch).items():
                if name != "loss":
                    wanted = each.detach()
                    torch.testing.assert_close(
                        torch.as_tensor(found[name]), wanted, rtol=NEAR, atol=1e-14
                    )


def test_predict_returns_the_rows_of_eval_mode() -> None:
    with exactness.double_precision():
        model, batch = classifier(ROWS)
        model = nn.ModuleDict({"drop": nn.Dropout(0.5), "rest": model})

        def loss_of(model: nn.ModuleDict, x: Tensor, labels: Tensor) -> Any:
            return model["rest"](model["drop"](x), labels)

        graph = medley.capture(model, batch, loss=loss_of, outputs="logits")
        trainer = trainer_of(model, graph, plans(graph)[2])
        for rows in (ROWS, 4, 2 * ROWS):
            part = {name: torch.cat([value, value])[:rows] for name, value in batch.items()}
            found = trainer.predict(part)
            with torch.no_grad(), in_eval_mode(model):
                want = loss_of(model, **part)
            assert found["loss"] == pytest.approx(want["loss"].item(), rel=NEAR)
            assert found["right"] == want["right"].item()
            torch.testing.assert_close(found["logits"], want["logits"], rtol=NEAR, atol=1e-14)
        assert trainer.evaluate(batch).keys() == {"loss", *graph.outputs} - {"logits"}


def test_rows_keep_their_type_under_autocast() -> None:
    model, batch = classifier(ROWS)
    graph = medley.capture(model, batch, autocast=torch.bfloat16, outputs=["logits", "hidden.1"])
    for plan in plans(graph)[:2]:
        found = trainer_of(model, graph, plan).step(batch).outputs
        with torch.autocast("cpu", torch.bfloat16):
            want = model(**batch)
        assert found["logits"].dtype == want["logits"].dtype == torch.bfloat16
        assert found["hidden.1"].dtype == torch.bool
        torch.testing.assert_close(found["logits"], want["logits"].detach(), rtol=0.05, atol=0.05)
