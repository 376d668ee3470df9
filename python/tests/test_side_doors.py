"""State that forward writes outside of autograd is refused, with its line and a replacement: no
step would update it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import exactness
import plain_torch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley
from medley.capture import CaptureError

Change = Callable[[Any, Tensor], Any]


class Student(nn.Module):
    """A layer, a frozen one, and a buffer."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change
        self.student = nn.Linear(4, 4)
        self.teacher = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("other", torch.zeros(4))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the loss."""
        self.change(self, x)
        return F.mse_loss(self.student(x) * self.scale, self.teacher(x) + 1 + self.other)


def moves_teacher(m: Any, x: Tensor) -> None:
    for new, old in zip(m.student.parameters(), m.teacher.parameters(), strict=True):
        old.data = 0.5 * old.data + 0.5 * new.data


def clips(m: Any, x: Tensor) -> None:
    m.student.weight.data = m.student.weight.data.clamp(-0.1, 0.1)


def flattens(m: Any, x: Tensor) -> None:
    whole = nn.utils.parameters_to_vector(m.student.parameters()).detach()
    nn.utils.vector_to_parameters(whole * 0.9, m.student.parameters())


def sets_parameter(m: Any, x: Tensor) -> None:
    with torch.no_grad():
        m.student.weight.set_(m.student.weight * 0.9)


def restores(m: Any, x: Tensor) -> None:
    before = m.student.weight.data
    m.student.weight.data = before * 0.5
    m.student(x)
    m.student.weight.data = before


def averages_in_place(m: Any, x: Tensor) -> None:
    with torch.no_grad():
        torch._foreach_lerp_(list(m.student.parameters()), list(m.teacher.parameters()), 0.1)


def data_of_an_activation(m: Any, x: Tensor) -> None:
    hidden = x * 1
    hidden.data = hidden * 2


DATA, SET = r"forward sets x\.data,", r"forward calls x\.set_\(\.\.\.\),"
IN_PLACE = r"the model changes its parameter '\w+\.\w+' in place"
DOORS: dict[str, tuple[Change, str]] = {
    "teacher": (moves_teacher, DATA),
    "clipped": (clips, DATA),
    "vector": (flattens, DATA),
    "restored": (restores, DATA),
    "activation": (data_of_an_activation, DATA),
    "batch": (lambda m, x: setattr(x, "data", x * 2), DATA),
    "buffer": (lambda m, x: setattr(m.scale, "data", m.scale * 0.9), DATA),
    "set of a parameter": (sets_parameter, SET),
    "set of a buffer": (lambda m, x: m.scale.set_(m.scale * 0.9), SET),
    "swapped": (lambda m, x: torch.utils.swap_tensors(m.scale, m.other), "swap_tensors"),
    "storage": (
        lambda m, x: m.student.weight.untyped_storage().fill_(0),
        f"forward writes to the storage of a tensor|{IN_PLACE}",
    ),
    "assigned state": (
        lambda m, x: m.teacher.load_state_dict(m.student.state_dict(), assign=True),
        r"load_state_dict\(assign=True\)",
    ),
    "loaded state": (lambda m, x: m.student.load_state_dict(m.teacher.state_dict()), IN_PLACE),
    "data in place": (lambda m, x: m.student.weight.data.mul_(0.9), IN_PLACE),
    "part of data": (lambda m, x: m.student.weight.data.__setitem__(0, 0.1), IN_PLACE),
    "without gradient": (averages_in_place, IN_PLACE),
    "new parameter": (
        lambda m, x: setattr(m.student, "weight", nn.Parameter(m.student.weight * 0.9)),
        "the model assigns its parameter 'student.weight' anew in forward",
    ),
}
FEW = ("teacher", "set of a buffer", "swapped", "loaded state", "new parameter")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in DOORS if name not in FEW]


@pytest.mark.parametrize("name", [*FEW, *SLOW])
def test_a_side_door_is_refused(name: str) -> None:
    change, sentence = DOORS[name]
    with pytest.raises(CaptureError, match=sentence) as raised:
        medley.capture(Student(change), torch.randn(6, 4))
    message = str(raised.value)
    assert "test_side_doors.py:" in message
    assert "keep what forward changes in a buffer or a frozen parameter" in message


def test_a_gradient_that_forward_sets_is_refused() -> None:
    def change(m: Any, x: Tensor) -> None:
        m.student.weight.grad = torch.ones(4, 4)

    with pytest.raises(CaptureError, match=r"forward sets x\.grad.*: add a term to the loss"):
        medley.capture(Student(change), torch.randn(6, 4))


# The replacement in the error message.
def test_tensors_copied_in_forward_train_exactly() -> None:
    def change(m: Any, x: Tensor) -> None:
        m.scale.copy_(0.9 * m.scale + 0.1 * m.student.weight.detach().mean(0))
        m.other.data.mul_(0.5).add_(0.1)
        m.teacher.load_state_dict(m.student.state_dict())
        m.last.copy_(m.student.bias)  # the values for the next step have no gradient

    with exactness.double_precision():
        batches = [torch.randn(plain_torch.ROWS, 4) for _ in range(3)]
        plain_torch.check(Student(change), batches, ["one device", "two devices"])
