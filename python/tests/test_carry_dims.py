"""The usual truncated backpropagation: states of nn.LSTM, [layers, rows, hidden], are carried from
step to step, as in one loop of PyTorch."""

from __future__ import annotations

from pathlib import Path

import exactness
import pytest
import test_carry
import test_outputs
import torch
import torch.nn.functional as F  # noqa: N812
from test_carry import NEAR
from test_fewer_rows import ROWS, trainer_of
from torch import Tensor, nn

import medley

LAYERS, WIDTH, LENGTH = 2, 8, 5
CARRY = {"h0": "hidden", "c0": "cell"}


class Text(nn.Module):
    """Predicts the next word of texts, [rows, time] or [time, rows]."""

    def __init__(self, rows_first: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, WIDTH, LAYERS, batch_first=rows_first)
        self.last = nn.Linear(WIDTH, 11)

    def forward(self, data: Tensor, targets: Tensor, h0: Tensor, c0: Tensor) -> dict[str, Tensor]:
        """Returns the loss and both states."""
        output, (hidden, cell) = self.rnn(self.words(data), (h0, c0))
        logits = self.last(output).flatten(0, 1)
        return {
            "loss": F.cross_entropy(logits, targets.flatten()),
            "hidden": hidden,
            "cell": cell,
        }


def zeros(rows: int = ROWS) -> dict[str, Tensor]:
    """Returns the first states."""
    return {name: torch.zeros(LAYERS, rows, WIDTH) for name in CARRY}


def row_dims(rows_first: bool) -> dict[str, int | None]:
    """Returns the dims of the rows that are not dim 0."""
    return dict.fromkeys(CARRY if rows_first else (*CARRY, "data", "targets"), 1)


def pieces(seed: int, count: int, rows_first: bool, rows: int = ROWS) -> list[dict[str, Tensor]]:
    """Returns consecutive pieces of a text for each row."""
    made = torch.Generator().manual_seed(seed)
    text = torch.randint(0, 11, (rows, LENGTH * count + 1), generator=made)
    found = []
    for first in range(0, LENGTH * count, LENGTH):
        piece = text[:, first : first + LENGTH], text[:, first + 1 : first + LENGTH + 1]
        data, targets = (each if rows_first else each.T.contiguous() for each in piece)
        found.append({"data": data, "targets": targets})
    return found


def eager_of(model: nn.Module) -> test_carry.Eager:
    """Returns the loop in PyTorch."""
    return test_carry.Eager(model, CARRY, zeros)


def compare(
    trainer: medley.Trainer, eager: test_carry.Eager, batches: list[dict[str, Tensor]]
) -> None:
    """Asserts that steps and carried values equal those of the loop in PyTorch."""
    for piece in batches:
        assert trainer.step(piece).loss == pytest.approx(eager.step(piece)["loss"].item(), rel=NEAR)
        for name, value in trainer.carried().items():
            torch.testing.assert_close(value, eager.carried[name], rtol=NEAR, atol=1e-12)


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("rows_first", [True, False])
def test_states_of_an_lstm_are_carried(rows_first: bool, is_given: bool, tmp_path: Path) -> None:
    with exactness.double_precision():
        torch.manual_seed(0)
        model = Text(rows_first)
        example = pieces(0, 1, rows_first)[0] | {n: each + 0.1 for n, each in zeros().items()}
        graph = medley.capture(
            model, example, carry=CARRY, rows=row_dims(rows_first) if is_given else None
        )
        plans = test_outputs.plans(graph)
        for number, plan in enumerate(plans[1:3], 1):
            trainer, eager = trainer_of(model, graph, plan), eager_of(model)
            compare(trainer, eager, pieces(1, 3, rows_first))
            held_out = pieces(2, 3, rows_first)
            assert trainer.evaluate(held_out)["loss"] == pytest.approx(
                eager.evaluate(held_out), rel=NEAR
            )
            trainer.save(tmp_path / str(number))
            other = trainer_of(model, graph, plans[number + 1])
            other.load(tmp_path / str(number))
            compare(other, eager, pieces(3, 2, rows_first))
            given = {"c0": torch.randn(LAYERS, ROWS, WIDTH)}
            other.reset_carried(given)
            eager.carried = zeros() | given
            compare(other, eager, pieces(4, 1, rows_first))


@pytest.mark.parametrize("rows_first", [True, False])
def test_fewer_rows_carry_their_own_states(rows_first: bool) -> None:
    with exactness.double_precision():
        torch.manual_seed(0)
        model = Text(rows_first)
        example = pieces(0, 1, rows_first)[0] | zeros()
        graph = medley.capture(model, example, carry=CARRY, rows=row_dims(rows_first))
        trainer, eager = trainer_of(model, graph, test_outputs.plans(graph)[2]), eager_of(model)
        compare(trainer, eager, pieces(1, 1, rows_first))
        eager.carried = {name: each[:, :4] for name, each in eager.carried.items()}
        for piece in pieces(2, 2, rows_first, 4):
            assert trainer.step(piece).loss == pytest.approx(
                eager.step(piece)["loss"].item(), rel=NEAR
            )
