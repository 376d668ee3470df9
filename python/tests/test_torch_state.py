"""The state of an optimizer of PyTorch comes in and goes out, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import by_step
import pytest
import torch
from test_named_optimizers import NAMED
from torch import Tensor, nn

import medley

HALF = 5  # steps
CASES: dict[str, tuple[medley.optimizer.Optimizer, Any]] = {
    **NAMED,
    "AdamW": (medley.AdamW(lr=1e-2), lambda p: torch.optim.AdamW(p, 1e-2)),
    "Adam": (medley.Adam(lr=1e-2), lambda p: torch.optim.Adam(p, 1e-2)),
    "SGD": (medley.SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "SGD, plain": (medley.SGD(lr=0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "Adafactor": (medley.Adafactor(), lambda p: torch.optim.Adafactor(p)),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """Makes some steps of PyTorch."""
    for _ in range(HALF):
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()


def assert_same(got: Any, want: Any, place: str = "") -> None:
    """Asserts that two states are the same, bit for bit."""
    if isinstance(want, Tensor):
        assert torch.equal(got, want) and got.dtype == want.dtype, place
    elif isinstance(want, dict):
        assert set(got) == set(want), place
        for key, value in want.items():
            assert_same(got[key], value, f"{place}/{key}")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), place
        for i, value in enumerate(want):
            assert_same(got[i], value, f"{place}/{i}")
    else:
        assert got == want, (place, got, want)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns them by name."""
    return {name: p.detach() for name, p in model.named_parameters()}


def check(name: str, kind: str, path: Any) -> None:
    """Asserts that training resumes from PyTorch's state and back without a loss of state."""
    ours, optimizer_of = CASES[name]
    with by_step.exactness.double_precision():
        model, batch, graph = by_step.made()
        model = copy.deepcopy(model)
        theirs = optimizer_of(model.parameters())
        train(model, theirs, batch)
        torch.save({"model": model.state_dict(), "optimizer": theirs.state_dict()}, path)
        found = torch.load(path, weights_only=True)

        trainer = by_step.trainer_of(model, graph, ours, kind)
        trainer.load_optimizer_state(found["optimizer"], step=HALF)
        assert trainer.steps == HALF
        assert_same(trainer.optimizer_state_dict(), found["optimizer"])
        train(model, theirs, batch)
        for _ in range(HALF):
            trainer.step(batch)
        by_step.compare(trainer.parameters(), parameters_of(model))

        other = copy.deepcopy(model)
        other.load_state_dict(trainer.parameters())
        back = optimizer_of(other.parameters())
        torch.save(trainer.optimizer_state_dict(), path)
        back.load_state_dict(torch.load(path, weights_only=True))
        train(other, back, batch)
        for _ in range(HALF):
            trainer.step(batch)
        by_step.compare(trainer.parameters(), parameters_of(other))


@pytest.mark.parametrize("name", ["AdamW", "SGD", "NAdam"])
def test_the_state_of_pytorch_comes_in_and_goes_out(name: str, tmp_path: Any) -> None:
    check(name, "owners", tmp_path / "ckpt.pt")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["zero", "1"])
def test_the_state_of_pytorch_comes_in_and_goes_out_anywhere(
    name: str, kind: str, tmp_path: Any
) -> None:
    check(name, kind, tmp_path / "ckpt.pt")


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Returns whether nanoGPT has it decay."""
    return len(shape) >= 2


GROUPS = medley.Groups(
    groups=[
        (is_matrix, medley.AdamW(lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)),
        ("*", medley.AdamW(lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)),
    ],
)


def nanogpt(model: nn.Module) -> torch.optim.Optimizer:
    """Returns the optimizer of nanoGPT's configure_optimizers."""
    return torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=1e-2,
        betas=(0.9, 0.95),
    )


def test_a_checkpoint_of_two_groups_goes_on(tmp_path: Any) -> None:
    with by_step.exactness.double_precision():
        model, batch, graph = by_step.made()
        model = copy.deepcopy(model)
        theirs = nanogpt(model)
        train(model, theirs, batch)
        state = theirs.state_dict()
        trainer = by_step.trainer_of(model, graph, GROUPS, "tensor")
        trainer.load_optimizer_state(state)
        assert_same(trainer.optimizer_state_dict(), state)
        train(model, theirs, batch)
        for _ in range(HALF):
            trainer.step(batch)
        by_step.compare(trainer.parameters(), parameters_of(model))


def test_two_optimizers_of_pytorch_are_groups() -> None:
    def matrix(name: str, shape: tuple[int, ...]) -> bool:
        return len(shape) == 2

    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
    model.register_forward_hook(lambda module, args, result: result.pow(2).mean())
    batch = torch.randn(6, 4)
    graph = medley.capture(model, batch)
    two = [
        torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=1e-2),
        torch.optim.AdamW([p for p in model.parameters() if p.dim() != 2], lr=1e-3),
    ]
    for _ in range(3):
        model(batch).backward()
        for optimizer in two:
            optimizer.step()
            optimizer.zero_grad()
    ours = medley.Groups(groups=[(matrix, medley.Muon(lr=1e-2)), ("*", medley.AdamW())])
    trainer = by_step.trainer_of(model, graph, ours, "zero")
    trainer.load_optimizer_state([each.state_dict() for each in two])
    assert trainer.steps == 3
    got = trainer.optimizer_state_dict()["state"]
    want = [each for optimizer in two for each in optimizer.state_dict()["state"].values()]
    assert_same([got[i] for i in range(4)], want)


def test_frozen_parameters_have_places_and_no_state() -> None:
    model, batch = by_step.Net(), torch.randn(by_step.ROWS, 6)
    model.a.weight.requires_grad_(False)
    graph = medley.capture(model, batch)
    theirs = torch.optim.AdamW(model.parameters(), 1e-2)
    train(model, theirs, batch)
    trainer = by_step.trainer_of(model, graph, medley.AdamW(lr=1e-2), "zero")
    trainer.load_optimizer_state(theirs.state_dict())
    got, want = trainer.optimizer_state_dict()["state"], theirs.state_dict()["state"]
    assert_same(list(got.values()), list(want.values()))


def test_names_say_which_parameters_the_places_are() -> None:
    model, batch = by_step.Net(), torch.randn(by_step.ROWS, 6)
    graph = medley.capture(model, batch)
    order = sorted((name for name, _ in model.named_parameters()), reverse=True)
    named = dict(model.named_parameters())
    theirs = torch.optim.AdamW([named[name] for name in order], 1e-2)
    train(model, theirs, batch)
    want = {n: theirs.state[named[n]]["exp_avg"] for n in order}
    trainer = by_step.trainer_of(model, graph, medley.AdamW(lr=1e-2), "zero")
    with pytest.raises(ValueError, match=r"exp_avg: found shape .*, expected .*: names=\[...\]"):
        trainer.load_optimizer_state(theirs.state_dict())
    trainer.load_optimizer_state(theirs.state_dict(), names=order)
    got = trainer.optimizer_state_dict()["state"]
    for place, (name, _) in enumerate(model.named_parameters()):
        assert torch.equal(got[place]["exp_avg"], want[name])
    known = torch.optim.AdamW([(name, named[name]) for name in order], 1e-2)
    train(model, known, batch)
    trainer.load_optimizer_state(known.state_dict())


def test_misfits_are_refused() -> None:
    model, batch = by_step.Net(), torch.randn(by_step.ROWS, 6)
    graph = medley.capture(model, batch)

    def state_of(kind: Any, **numbers: Any) -> Any:
        optimizer = kind(copy.deepcopy(model).parameters(), 1e-2, **numbers)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        optimizer.step()
        return optimizer.state_dict()

    adamw = by_step.trainer_of(model, graph, medley.AdamW(), "zero")
    momentum = by_step.trainer_of(model, graph, medley.SGD(lr=0.1, momentum=0.9), "zero")
    with (
        pytest.warns(UserWarning, match="goes on with its own"),
        pytest.raises(ValueError, match="a.weight: found step, sum, expected exp_avg of AdamW"),
    ):
        adamw.load_optimizer_state(state_of(torch.optim.Adagrad))
    with pytest.raises(ValueError, match="found amsgrad True, expected False: AdamW has no other"):
        adamw.load_optimizer_state(state_of(torch.optim.AdamW, amsgrad=True))
    with pytest.raises(ValueError, match="found groups of .* parameters, expected"):
        adamw.load_optimizer_state(nanogpt(model).state_dict())
    with pytest.raises(ValueError, match="does not say its step, expected also step="):
        momentum.load_optimizer_state(state_of(torch.optim.SGD, momentum=0.9))
    with pytest.warns(UserWarning, match=r"found weight_decay 0.3, AdamW goes on with its own"):
        adamw.load_optimizer_state(state_of(torch.optim.AdamW, weight_decay=0.3))
    lion = by_step.trainer_of(model, graph, medley.Lion(), "zero")
    with pytest.raises(ValueError, match="found Lion, expected what torch.optim has, too"):
        lion.optimizer_state_dict()
