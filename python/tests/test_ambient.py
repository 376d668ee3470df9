"""Capture and evaluation give the same in every state of PyTorch that a script may have set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from test_evaluation import PLANS, classifier
from test_fewer_rows import ROWS, trainer_of
from torch import Tensor

import medley
from medley.optimizer import pointwise


@contextlib.contextmanager
def between(set_state: Callable[[Any], Any], inside: Any, after: Any) -> Iterator[None]:
    """Sets a state of the process inside the block."""
    set_state(inside)
    try:
        yield
    finally:
        set_state(after)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "both": lambda: nested(torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)),
    "default dtype": lambda: between(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "default device": lambda: between(torch.set_default_device, "meta", None),
    "absent device": lambda: between(torch.set_default_device, "cuda", None),
    "device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: between(torch.use_deterministic_algorithms, True, False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
}


@contextlib.contextmanager
def nested(*states: AbstractContextManager[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for state in states:
            stack.enter_context(state)
        yield


@pytest.fixture(scope="module")
def plain() -> tuple[Any, Any, medley.Graph, dict[str, float]]:
    """Returns a model, its batch, its graph, and its means after one step, in PyTorch's own
    state."""
    model, batch = classifier(ROWS)
    graph = medley.capture(model, batch)
    trainer = trainer_of(model, graph, PLANS["rows"])
    trainer.step(batch)
    return model, batch, graph, trainer.evaluate(batch)


def state(name: str) -> list[Any]:
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_default_dtype(),
        None if name == "absent device" else torch.get_default_device(),
    ]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.filterwarnings("ignore:capture. torch.autocast")
@pytest.mark.parametrize("name", STATES)
def test_capture_and_evaluation_are_the_same(name: str, plain: Any) -> None:
    model, batch, graph, means = plain
    with STATES[name]():
        before = state(name)
        found = medley.capture(model, batch, check=False)
        trainer = trainer_of(model, graph, PLANS["rows"])
        trainer.step(batch)
        evaluated = trainer.evaluate([batch])
        parameters = trainer.parameters()
        assert state(name) == before
    assert found.core.text() == graph.core.text()
    assert evaluated == means
    assert all(value.device.type == "cpu" for value in parameters.values())


def test_an_autocast_around_capture_is_said_to_have_no_effect(plain: Any) -> None:
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.warns(UserWarning, match="pass autocast=torch.bfloat16"),
    ):
        medley.capture(plain[0], plain[1], check=False)


def test_an_own_rule_is_captured_in_inference_mode() -> None:
    def rule(x: Tensor, grad: Tensor, *, lr: Tensor, step: Tensor) -> Tensor:
        return x - lr * grad

    model, batch = classifier(ROWS)
    graph = medley.capture(model, batch, check=False).core
    plain = pointwise(rule, lr=0.1).arguments(graph)
    with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        assert pointwise(rule, lr=0.1).arguments(graph) == plain
