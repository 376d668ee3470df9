"""Optimizers equal those of PyTorch, or those of the paper, on any shards. Groups of parameters
have their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import exactness
import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import medley
from medley import _testing

ROWS = exactness.ROWS
STEPS = 5
# The gradient of a key bias is rounding, which these optimizers amplify: models without biases.
MODELS = {"lion": "llama", "adafactor": "llama"}


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of https://arxiv.org/abs/2302.06675."""

    def __init__(self, parameters: Iterable[Any], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("m", torch.zeros_like(p))
                update = torch.sign(0.9 * m + 0.1 * p.grad)
                p.sub_(group["lr"] * (update + group["weight_decay"] * p))
                m.copy_(0.99 * m + 0.01 * p.grad)


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Returns whether a parameter is a matrix, by name and shape."""
    return len(shape) == 2


def matrices(model: nn.Module, wanted: bool) -> list[nn.Parameter]:
    """Returns the parameters that are matrices, or the others."""
    return [p for p in model.parameters() if (p.dim() == 2) == wanted]


class Both:
    """Two optimizers as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()


Theirs = Callable[[nn.Module], Any]
CASES: dict[str, tuple[medley.optimizer.Optimizer, Theirs]] = {
    "adam": (
        medley.Adam(lr=1e-3, weight_decay=0.1, betas=(0.8, 0.95)),
        lambda m: torch.optim.Adam(m.parameters(), 1e-3, weight_decay=0.1, betas=(0.8, 0.95)),
    ),
    "sgd": (
        medley.SGD(lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda m: torch.optim.SGD(
            m.parameters(), 1e-2, momentum=0.9, nesterov=True, weight_decay=0.01
        ),
    ),
    "lion": (
        medley.Lion(lr=1e-3, weight_decay=0.1),
        lambda m: Lion(m.parameters(), 1e-3, 0.1),
    ),
    "adafactor": (
        medley.Adafactor(lr=1e-2, weight_decay=0.01),
        lambda m: torch.optim.Adafactor(m.parameters(), 1e-2, weight_decay=0.01),
    ),
    "muon": (
        medley.Groups(groups=[(is_matrix, medley.Muon(lr=1e-2)), ("*", medley.AdamW(lr=1e-3))]),
        lambda m: Both(
            torch.optim.Muon(matrices(m, True), 1e-2),
            torch.optim.AdamW(matrices(m, False), 1e-3),
        ),
    ),
    "groups": (
        medley.Groups(
            groups=[
                ("*norm*", medley.AdamW(lr=1e-2, weight_decay=0.0)),
                ("*.bias", medley.SGD(lr=1e-2)),
                ("*", medley.AdamW(lr=1e-3, weight_decay=0.1)),
            ]
        ),
        lambda m: Both(
            torch.optim.AdamW(named(m, lambda n: "norm" in n), 1e-2, weight_decay=0.0),
            torch.optim.SGD(named(m, lambda n: "norm" not in n and n.endswith(".bias")), 1e-2),
            torch.optim.AdamW(
                named(m, lambda n: "norm" not in n and not n.endswith(".bias")),
                1e-3,
                weight_decay=0.1,
            ),
        ),
    ),
}


def named(model: nn.Module, takes: Callable[[str], bool]) -> list[nn.Parameter]:
    """Returns the parameters with matching names."""
    return [p for name, p in model.named_parameters() if takes(name)]


def plan_of(
    kind: str, graph: medley.Graph, optimizer: medley.optimizer.Optimizer | None = None
) -> str:
    """Returns a plan: ZeRO on two devices, parameters in shards, owners with shards, or the random
    plan of this number for an optimizer."""
    stage: dict[str, Any] = {"mesh": {"devices": ["a/0/0", "a/1/0"]}}
    pipelines = [{"microbatches": [{"rows": ROWS, "lengths": [4, 2]}], "stages": [stage]}]
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": ROWS,
        "parts": [{"name": "part", "shares": [3, 1]}],
        "pipelines": pipelines,
    }
    if kind == "zero":
        stage["updates"] = {"*": "S(0, part)"}
    elif kind == "tensor":
        stage["placements"] = {"*": "S(0, part)"}
    elif kind == "owners":
        stage["placements"] = {"*.weight": "S(0, part)"}
        plan["owners"] = {"*": "part"}
        pipelines[0]["microbatches"] = [{"rows": 4, "lengths": [3, 1]}]
        other = {"mesh": {"devices": ["a/2/0"]}}
        pipelines.append({"microbatches": [{"rows": 2}], "stages": [other]})
    else:
        devices = [f"a/{i}/0" for i in range(4)]
        core = optimizer and optimizer.core(graph.core)
        return _testing.random_pipelines(graph.core.text(), devices, ROWS, int(kind), core)
    return json.dumps(plan)


@pytest.fixture(autouse=True)
def muon_in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's Muon has its iteration in bf16 always: in float64 it is comparable."""
    monkeypatch.setattr(Tensor, "bfloat16", lambda self: self.clone())


def check(name: str, kinds: list[str]) -> None:
    """Asserts that an optimizer equals that of PyTorch under plans of these kinds."""
    ours, theirs = CASES[name]
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[MODELS.get(name, "gpt")], ROWS)
        want = exactness.train_eager(model, batch, STEPS, 0.0, optimizer_of=theirs)
        for kind in kinds:
            plan = plan_of(kind, graph, ours)
            got = exactness.train_plan(model, graph, plan, batch, STEPS, 0.0, optimizer=ours)
            worst = exactness.compare(got, want)
            print(f"{name}, {kind}: {worst:.1e}")


@pytest.mark.parametrize(
    "name", ["muon", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "muon")]
)
def test_optimizers_are_those_of_pytorch_on_shards(name: str) -> None:
    check(name, ["zero", "owners"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_optimizers_are_those_of_pytorch_under_any_plan(name: str) -> None:
    check(name, ["tensor", "1", "2", "3", "4"])


def test_non_optimizers_are_refused() -> None:
    for make, sentence in (
        (lambda: medley.AdamW(lr=None), "AdamW: lr: found None"),
        (lambda: medley.AdamW(lr="1e-3"), "AdamW: lr: found 1e-3"),
        (lambda: medley.AdamW(weight_decay=None), "AdamW: weight_decay: found None"),
        (lambda: medley.AdamW(betas=(0.9,)), "expected two numbers"),
        (lambda: medley.Lion(betas=(0.9, "a")), "Lion: betas: found a"),
        (lambda: medley.SGD(max_norm="a"), "SGD: max_norm: found a"),
        (lambda: medley.Groups(groups={"*": medley.AdamW()}), "expected pairs"),
        (lambda: medley.Groups(groups=[medley.AdamW()]), "expected pairs"),
    ):
        with pytest.raises(ValueError, match=sentence):
            make()


def test_a_plan_is_found_for_sgd_that_keeps_nothing() -> None:
    model, batch = ZOO["mlp"](batch=ROWS)
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, exactness.cluster(2), global_batch=ROWS, optimizer=medley.SGD())
    assert plan.global_batch == ROWS
