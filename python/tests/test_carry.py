"""Values carried from step to step equal truncated backpropagation on one device, under any plan,
and after a checkpoint under another plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import exactness
import pytest
import test_outputs
import torch
import torch.nn.functional as F  # noqa: N812
from test_fewer_rows import LEARNING_RATE, ROWS, trainer_of
from torch import Tensor, nn

import medley
from medley import _testing
from medley.capture import CaptureError

NEAR = 1e-10
STEPS = 4


class Reader(nn.Module):
    """Reads a piece of text from the current position of each row: two states, rows first and
    second."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.rnn = nn.GRU(6, 8, 2, batch_first=True)
        self.last = nn.Linear(8, 11)

    def forward(self, data: Tensor, targets: Tensor, state: Tensor, seen: Tensor) -> dict[str, Any]:
        """Returns the loss, both states, and results per row."""
        output, hidden = self.rnn(self.words(data), state.transpose(0, 1).contiguous())
        logits = self.last(output) + seen.mean(1)[:, None, None]
        return {
            "loss": F.cross_entropy(logits.flatten(0, 1), targets.flatten()),
            "logits": logits,
            "hidden": hidden.transpose(0, 1),
            "seen": (seen + data.to(seen.dtype).mean(1, keepdim=True)).roll(1, 1),
        }


CARRY = {"state": "hidden", "seen": "seen"}


def pieces(seed: int, count: int, rows: int = ROWS) -> list[dict[str, Tensor]]:
    """Returns consecutive pieces of a text for each row."""
    text = torch.randint(
        0, 11, (rows, 5 * count + 1), generator=torch.Generator().manual_seed(seed)
    )
    return [
        {"data": text[:, 5 * i : 5 * i + 5], "targets": text[:, 5 * i + 1 : 5 * i + 6]}
        for i in range(count)
    ]


def zeros(rows: int = ROWS) -> dict[str, Tensor]:
    """Returns the initial carried values."""
    return {"state": torch.zeros(rows, 2, 8), "seen": torch.zeros(rows, 3)}


class Eager:
    """The loop in PyTorch."""

    def __init__(
        self,
        model: nn.Module,
        carry: Mapping[str, str] = MappingProxyType(CARRY),
        first: Callable[[], dict[str, Tensor]] = zeros,
    ) -> None:
        """`carry`: the output that each input takes. `first`: the inputs of the first step."""
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.01
        )
        self._carry, self._first = carry, first
        self.carried = first()

    def step(self, piece: dict[str, Tensor]) -> dict[str, Tensor]:
        """Trains on one piece."""
        found = self.model(**piece, **self.carried)
        self.optimizer.zero_grad()
        found["loss"].backward()
        self.optimizer.step()
        self.carried = {name: found[output].detach() for name, output in self._carry.items()}
        return {name: each.detach() for name, each in found.items()}

    def evaluate(self, batches: list[dict[str, Tensor]]) -> float:
        """Returns the mean loss of consecutive pieces."""
        carried, losses = self._first(), []
        with torch.no_grad():
            for piece in batches:
                found = self.model(**piece, **carried)
                carried = {name: found[output] for name, output in self._carry.items()}
                losses.append(found["loss"].item())
        return sum(losses) / len(losses)


_captured: list[medley.Graph] = []


def reader() -> tuple[nn.Module, medley.Graph]:
    """Returns the model and its graph."""
    torch.manual_seed(0)
    model = Reader()
    if not _captured:
        example = {**pieces(0, 1)[0], **{name: each + 0.1 for name, each in zeros().items()}}
        _captured.append(medley.capture(model, example, carry=CARRY, outputs="logits"))
    return model, _captured[0]


def compare(trainer: medley.Trainer, eager: Eager, batches: list[dict[str, Tensor]]) -> None:
    """Asserts that steps equal those of the loop in PyTorch."""
    for piece in batches:
        want, found = eager.step(piece), trainer.step(piece)
        assert found.loss == pytest.approx(want["loss"].item(), rel=NEAR)
        assert set(found.outputs) == {"logits"}
        torch.testing.assert_close(found.outputs["logits"], want["logits"], rtol=NEAR, atol=1e-12)
        for name, value in trainer.carried().items():
            torch.testing.assert_close(value, eager.carried[name], rtol=NEAR, atol=1e-12)


PLANS = 6


@pytest.mark.parametrize("number", range(PLANS))
def test_rows_carry_their_state_under_any_plan(number: int, tmp_path: Path) -> None:
    with exactness.double_precision():
        model, graph = reader()
        plans = test_outputs.plans(graph)
        trainer, eager = trainer_of(model, graph, plans[number]), Eager(model)
        compare(trainer, eager, pieces(1, STEPS))
        held_out = pieces(2, 3)
        assert trainer.evaluate(held_out)["loss"] == pytest.approx(
            eager.evaluate(held_out), rel=NEAR
        )
        compare(trainer, eager, pieces(3, 1))  # its state is unchanged
        trainer.save(tmp_path)
        other = trainer_of(model, graph, plans[(number + 1) % PLANS])
        other.load(tmp_path)
        compare(other, eager, pieces(4, 2))
        other.reset_carried()
        eager.carried = zeros()
        compare(other, eager, pieces(5, 2))
        given = {"seen": torch.randn(ROWS, 3)}
        other.reset_carried(given)
        eager.carried = zeros() | given
        compare(other, eager, pieces(6, 2))
        assert not other.buffers()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 15))
def test_rows_carry_their_state_under_drawn_plans(seed: int) -> None:
    with exactness.double_precision():
        model, graph = reader()
        devices = [f"a/{i}/0" for i in range(2 + seed % 4)]
        plan = _testing.random_plan(graph.core.text(), devices, ROWS, seed)
        compare(trainer_of(model, graph, plan), Eager(model), pieces(1, STEPS))


def test_a_batch_of_fewer_rows_carries_its_own() -> None:
    with exactness.double_precision():
        model, graph = reader()
        trainer, eager = trainer_of(model, graph, test_outputs.plans(graph)[2]), Eager(model)
        compare(trainer, eager, pieces(1, 1))
        eager.carried = {name: each[:4] for name, each in eager.carried.items()}
        for piece in pieces(2, 2, 4):
            want, found = eager.step(piece), trainer.step(piece)
            assert found.loss == pytest.approx(want["loss"].item(), rel=NEAR)
            assert found.outputs["logits"].shape == want["logits"].shape


def test_mistakes_are_named() -> None:
    with exactness.double_precision():
        model, graph = reader()
        trainer = trainer_of(model, graph, test_outputs.plans(graph)[0])
        example = pieces(0, 1)[0] | zeros()
        with pytest.raises(ValueError, match="it is carried from step to step; reset_carried"):
            trainer.step(example)
        with pytest.raises(ValueError, match="found 'hidden', expected among seen, state"):
            trainer.reset_carried({"hidden": torch.zeros(1)})
        with pytest.raises(CaptureError, match="carry: 'state': found an input of the batch that"):
            medley.capture(model, example, carry={"state": "logits"}, check=False)
        with pytest.raises(CaptureError, match="carry: found 'state', expected one of what"):
            medley.capture(model, example, carry={"state": "state"}, check=False)
        with pytest.raises(CaptureError, match="outputs: found 'logit', expected the name"):
            medley.capture(model, example, outputs="logit", check=False)


def test_fit_begins_every_epoch_anew() -> None:
    with exactness.double_precision():
        model, graph = reader()
        trainer, eager = trainer_of(model, graph, test_outputs.plans(graph)[1]), Eager(model)
        batches = pieces(1, 2)
        found = trainer.fit(batches, epochs=2).last
        for _ in range(2):
            eager.carried = zeros()
            losses = [eager.step(piece)["loss"].item() for piece in batches]
        assert found is not None
        assert found.loss == pytest.approx(losses[-1], rel=NEAR)


def test_objectives_carry_their_own(tmp_path: Path) -> None:
    with exactness.double_precision():
        model, graph = reader()
        plan = medley.Plan(test_outputs.plans(graph)[0])
        objective = medley.Objective(graph, plan, medley.AdamW(lr=LEARNING_RATE, weight_decay=0.01))
        cluster = exactness.cluster(7)
        with pytest.raises(ValueError, match="objectives 'a' and 'b' that carry 'state'"):
            medley.JointTrainer(
                model, {"a": objective, "b": objective}, local=True, cluster=cluster
            )
        trainer = medley.JointTrainer(model, {"a": objective}, local=True, cluster=cluster)
        eager = Eager(model)
        for i, piece in enumerate(pieces(1, 3)):
            if i == 2:
                trainer.reset_carried("a")
                trainer.save(tmp_path)
                eager.carried = zeros()
            with torch.no_grad():
                want = eager.model(**piece, **zeros())["logits"]
            torch.testing.assert_close(
                trainer.predict("a", piece)["logits"], want, rtol=NEAR, atol=1e-12
            )
            loss = eager.step(piece)["loss"].item()
            assert trainer.step("a", piece).loss == pytest.approx(loss, rel=NEAR)
        assert not trainer.buffers()
        again = medley.JointTrainer(model, {"a": objective}, local=True, cluster=cluster)
        again.load(tmp_path)
        assert again.step("a", piece).loss == pytest.approx(loss, rel=NEAR)
