"""Several losses over one state train as PyTorch's loops do, each under a plan of its own."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch
from joint_models import CASES, ROWS, Case, LinearGan, noise_and_rows
from test_pipelines import cuts
from torch import Tensor, nn

import medley
import medley.methods

STEPS = 12
STAGES: dict[str, dict[str, Any]] = {
    "one": {"devices": [0]},
    "other": {"devices": [1]},
    "rows": {"devices": [0, 1]},
    "uneven": {"devices": [1, 0], "lengths": [4, 2]},
    "tensor": {"devices": [0, 1], "placements": {"*weight": "S(0, even)"}, "batch": {"*": "R"}},
    "zero": {"devices": [0, 1], "updates": {"*": "S(0, even)"}},
}


def plan_of(shape: str, graph: medley.Graph) -> medley.Plan:
    """Returns a plan by its name in STAGES, or of two stages."""
    if shape == "stages":
        first = cuts(graph, 2)[0]
        stages: list[dict[str, Any]] = [
            {"mesh": {"devices": ["a/0/0"]}},
            {"mesh": {"devices": ["a/1/0"]}, "first": first},
        ]
        rows: dict[str, Any] = {"rows": ROWS}
    else:
        entries = dict(STAGES[shape])
        devices = [f"a/{number}/0" for number in entries.pop("devices")]
        rows = {"rows": ROWS} | {k: entries.pop(k) for k in ("lengths",) if k in entries}
        stages = [{"mesh": {"devices": devices}, **entries}]
    text = json.dumps(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "pipelines": [{"microbatches": [rows], "stages": stages}],
        }
    )
    return medley.Plan(text)


def made(case: Case, eager: bool = False) -> tuple[nn.Module, list[Any]]:
    """Returns a model and its batches, the same each time."""
    torch.manual_seed(0)
    make = case.loop or case.make if eager else case.make
    return make(), [case.batch() for _ in range(STEPS)]


@functools.cache
def captured(name: str) -> dict[str, medley.Graph]:
    """Returns the graphs of a case in float64."""
    case = CASES[name]
    model, batches = made(case)
    return {
        each: medley.capture(model, batches[0], loss=loss.method, train=loss.train)
        for each, loss in case.losses.items()
    }


@functools.cache
def train_eager(name: str) -> tuple[list[float], dict[str, Tensor]]:
    """Trains with plain PyTorch. Returns the losses, and the final parameters and buffers."""
    case = CASES[name]
    model, batches = made(case, eager=True)
    named = dict(model.named_parameters())
    trained = {
        each: [p for n, p in named.items() if medley.methods.among(loss.train)(n)]
        for each, loss in case.losses.items()
    }
    optimizers = {each: loss.torch_optimizer(trained[each]) for each, loss in case.losses.items()}
    losses = []
    for step, batch in enumerate(batches):
        which = case.order[step % len(case.order)]
        model.zero_grad()
        loss = getattr(model, case.losses[which].method)(**batch)
        loss.backward()
        optimizers[which].step()
        case.losses[which].after(model)
        losses.append(loss.item())
    return losses, {n: t.detach().clone() for n, t in model.state_dict().items()}


def trainer_of(name: str, shapes: Sequence[str], local: bool = True) -> medley.JointTrainer:
    """Returns a trainer of a case. The objectives use these plans in turn."""
    graphs = captured(name)
    return medley.JointTrainer(
        made(CASES[name])[0],
        {
            each: medley.Objective(
                graph,
                plan_of(shapes[i % len(shapes)], graph),
                CASES[name].losses[each].optimizer,
            )
            for i, (each, graph) in enumerate(graphs.items())
        },
        local=local,
        cluster=exactness.cluster(),
    )


def run(name: str, trainer: medley.JointTrainer, steps: range) -> list[float]:
    """Runs some steps of a case. Returns their losses."""
    case = CASES[name]
    batches = made(case)[1]
    return [trainer.step(case.order[i % len(case.order)], batches[i]).loss for i in steps]


def compared(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the compared values, without the followers, which are a step late in PyTorch's
    loop."""
    if CASES[name].loop is None:
        return state
    follows = ("teacher.", "key.")
    return {name: tensor for name, tensor in state.items() if not name.startswith(follows)}


def compare(name: str, trainer: medley.JointTrainer, losses: Sequence[float], first: int) -> None:
    """Asserts that losses from a step on, parameters and buffers are PyTorch's."""
    want_losses, want = train_eager(name)
    got = compared(name, trainer.parameters() | trainer.buffers())
    assert {n for n, _ in made(CASES[name])[0].named_parameters()} <= got.keys()
    want = {n: want[n] for n in got}
    exactness.compare(
        exactness.Curve(list(losses), {}, got), exactness.Curve(want_losses[first:], {}, want)
    )


SHAPES = ("one other", "tensor rows", "uneven zero", "rows stages")
# All cases under all plans are of the nightly tier.
USUAL = {("dcgan", "tensor rows"), ("wgan", "uneven zero"), ("two heads", "rows stages")}
USUAL |= {("dino", "tensor rows"), ("moco", "tensor rows"), ("distillation", "one other")}


def with_slow_ones(usual: Collection[tuple[str, str]]) -> list[Any]:
    """Returns every case with every pair of plans."""
    return [
        pytest.param(name, shapes, marks=[] if (name, shapes) in usual else [pytest.mark.slow])
        for name in CASES
        for shapes in SHAPES
    ]


@pytest.mark.parametrize(("name", "shapes"), with_slow_ones(USUAL))
def test_objectives_train_as_a_loop_of_pytorch_does(name: str, shapes: str) -> None:
    with exactness.double_precision():
        trainer = trainer_of(name, shapes.split())
        compare(name, trainer, run(name, trainer, range(STEPS)), 0)


@pytest.mark.parametrize("name", ["dcgan", "two heads"])
def test_a_checkpoint_resumes_all_objectives_under_other_plans(name: str, tmp_path: Path) -> None:
    with exactness.double_precision():
        before = trainer_of(name, ["rows", "tensor"])
        losses = run(name, before, range(5))
        assert losses == pytest.approx(train_eager(name)[0][:5], rel=1e-10)
        before.save(tmp_path)
        after = trainer_of(name, ["other", "zero"])
        found = after.load(tmp_path)
        assert found.step == 5 and after.steps == before.steps
        compare(name, after, run(name, after, range(5, STEPS)), 5)


class EvaluatedOnOther(LinearGan):
    """In eval mode the loss of the generator uses the discriminator's rows."""

    def generator_loss(self, noise: Tensor, real: Tensor) -> Tensor:
        if self.training:
            return self.generator(noise).square().mean()
        return self.judged(real, 1.0)


def test_evaluation_reads_what_only_another_objective_trains() -> None:
    with exactness.double_precision():
        torch.manual_seed(0)
        model, batch = EvaluatedOnOther(), noise_and_rows()
        methods = {"d": "discriminator_loss", "g": "generator_loss"}
        graphs = {
            each: medley.capture(
                model, batch, loss=methods[each], train=f"{methods[each].removesuffix('_loss')}.*"
            )
            for each in methods
        }
        trainer = medley.JointTrainer(
            model,
            {n: medley.Objective(g, plan_of("rows", g)) for n, g in graphs.items()},
            local=True,
            cluster=exactness.cluster(),
        )
        for _ in range(2):
            trainer.step("d", batch)
            found = trainer.evaluate("g", batch)["loss"]
            model.load_state_dict(trainer.parameters())
            model.eval()
            assert found == pytest.approx(model.generator_loss(**batch).item(), rel=1e-10)
            model.train()


def test_objectives_of_equal_plans_have_one_copy_of_shared_values() -> None:
    with exactness.double_precision():
        trainer = trainer_of("two heads", ["rows", "rows"])
        run("two heads", trainer, range(3))
        one, two = (each.run for each in trainer.engines.values())
        weight = ("parameter", "encoder.0.weight")
        assert one.shard(*weight, 0) is None and two.shard(*weight, 0) is not None
        before = two.shard(*weight, 0).data_ptr()
        run("two heads", trainer, range(3, 4))
        assert one.shard(*weight, 0).data_ptr() == before and two.shard(*weight, 0) is None


def test_another_set_of_objectives_is_refused(tmp_path: Path) -> None:
    with exactness.double_precision():
        trainer_of("linear gan", ["one"]).save(tmp_path)
        with pytest.raises(ValueError, match="found the objectives d, g, expected classify"):
            trainer_of("two heads", ["one"]).load(tmp_path)
        with pytest.raises(ValueError, match="objective: found 'e', expected one of d, g"):
            trainer_of("linear gan", ["one"]).step("e", {})


def test_patterns_that_fit_no_parameter_are_refused() -> None:
    with pytest.raises(ValueError, match="fits names of the model, such as 'generator.weight'"):
        medley.capture(LinearGan(), noise_and_rows(), loss="generator_loss", train="decoder.*")
    with pytest.raises(ValueError, match="loss: found 'loss', expected a function"):
        medley.capture(LinearGan(), noise_and_rows(), loss="loss")


class _Followed(nn.Module):
    """A student, and a frozen teacher that one of two losses moves."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Linear(4, 4)
        self.teacher = nn.Linear(4, 4).requires_grad_(False)

    def follow(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.student.weight, 0.1)
        return (self.student(x) - self.teacher(x)).square().mean()

    def agree(self, x: Tensor) -> Tensor:
        return (self.student(x) - self.teacher(x)).abs().mean()


def test_a_frozen_weight_that_one_objective_changes_is_no_parameter_of_another() -> None:
    with exactness.double_precision():
        model, x = _Followed(), torch.randn(ROWS, 4)
        objectives = {}
        for name in ("follow", "agree"):
            graph = medley.capture(model, {"x": x}, loss=name)
            objectives[name] = medley.Objective(graph, plan_of("one", graph), medley.SGD(lr=0.1))
        with pytest.raises(ValueError, match="'follow' changes the frozen parameter 'teacher.weig"):
            medley.JointTrainer(model, objectives, local=True, cluster=exactness.cluster())
