"""One model compared with PyTorch: two steps in float64 under several plans on three heterogeneous
devices."""

from __future__ import annotations

import contextlib
import copy
import re
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import medley
from medley import custom_ops
from medley.capture import CaptureError, substitute
from medley.capture.batch import loss_of
from medley.cluster import parse_cluster

CLUSTER = parse_cluster("""
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 1}
  - {name: middle, count: 1, device: half, devices_per_node: 1}
  - {name: slow, count: 1, device: third, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, middle, slow], bandwidth: 100 Gbit/s, latency: 1 us}
devices:
  half: {based_on: CPU, speed: 0.5}
  third: {based_on: CPU, speed: 0.33}
""")
PLANS = ("data-parallel-proportional", "auto")
ROWS, STEPS, SEED, RATE = 7, 2, 3, 0.05
RELATIVE, FLOOR = 1e-10, 1e-13
SINGLE = 2e-5  # for models that compute in float32
# Some models amplify small differences. Weights changed by rounding measure this amplification. A
# plan may differ from PyTorch by this multiple of its effect on the same steps.
NUDGE, NUDGE_SINGLE, TIMES = 1e-15, 1e-8, 30.0
EXACT, EXACT_SINGLE, REFUSED, WRONG, CRASHED, NO_PEER = (
    "exact",
    "exact to float32",
    "refused",
    "wrong",
    "crashed",
    "PyTorch does not train it",
)


class Curve:
    """The losses of the steps, and parameters and buffers after the last."""

    def __init__(self, losses: list[float], values: dict[str, Tensor]) -> None:
        self.losses = losses
        self.values = values


def outcome(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Any]:
    """Returns the result of a model: "result", one of the words above; "sentence", its reason;
    "plan", its place; and the seconds of PyTorch's steps, the capture and all plans."""
    with _precise(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model.double()
        batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        seconds: dict[str, float] = {}
        try:
            with _timed(seconds, "eager"):
                expected = _eager(model, batch)
        except CaptureError as error:  # raised by replacements of PyTorch's functions
            return _found(REFUSED, error, seconds, plan="capture")
        except Exception as error:
            return _found(NO_PEER, error, seconds)
        for name, p in model.named_parameters():  # a few models make some of them float32
            p.data = p.data.to(expected.values[name].dtype)
        try:
            with _timed(seconds, "capture"):
                graph = medley.capture(model, batch)
        except CaptureError as error:
            return _found(REFUSED, error, seconds, plan="capture")
        except Exception as error:
            return _found(CRASHED, error, seconds, plan="capture")
        worst = 0.0
        single = re.search(r"\b(f32|bf16|f16)\[", graph.text()) is not None
        nudged = _nudged(model, NUDGE_SINGLE if single else NUDGE)
        sensitivity = _difference(_eager(nudged, batch), expected)
        bound = max(SINGLE if single else RELATIVE, TIMES * sensitivity)
        for plan in PLANS:
            try:
                with _timed(seconds, plan):
                    worst = max(worst, _difference(_trained(plan, model, graph, batch), expected))
            except ValueError as error:
                return _found(REFUSED, error, seconds, plan=plan)
            except Exception as error:
                return _found(CRASHED, error, seconds, plan=plan)
            if worst > bound:
                why = f"differs by {worst:.1e}; weights changed by rounding: {sensitivity:.1e}"
                return _found(WRONG, why, seconds, plan=plan)
        result = EXACT_SINGLE if single and worst > RELATIVE else EXACT
        found = {"difference": worst, "sensitivity": sensitivity}
        return {"result": result, **found, "seconds": seconds}


@contextlib.contextmanager
def _precise() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _timed(seconds: dict[str, float], what: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        seconds[what] = round(time.monotonic() - start, 2)


def _found(
    result: str, why: Exception | str, seconds: dict[str, float], **more: str
) -> dict[str, Any]:
    kind = f"{type(why).__name__}: " if result in (CRASHED, NO_PEER) else ""
    sentence = " ".join(f"{kind}{why}".split())
    for folder in sorted(sys.path, key=len, reverse=True):  # the same on all machines
        sentence = sentence.replace(f"{folder}/", "") if folder else sentence
    return {"result": result, "sentence": sentence, "seconds": seconds, **more}


def _eager(model: nn.Module, batch: dict[str, Tensor]) -> Curve:
    model = copy.deepcopy(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        custom_ops.set_rng(SEED, step)
        with substitute(model):
            loss = loss_of(model(**batch))
            loss = loss[0] / loss[1] if isinstance(loss, tuple) else loss
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return Curve(losses, _values(model, {}, {}))


def _nudged(model: nn.Module, share: float) -> nn.Module:
    """Returns a copy whose parameters differ by a relative `share`."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + share * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def _trained(
    strategy: str, model: nn.Module, graph: medley.Graph, batch: dict[str, Tensor]
) -> Curve:
    optimizer = medley.SGD(lr=RATE, momentum=0.9)
    plan = medley.plan(graph, CLUSTER, strategy, global_batch=ROWS, optimizer=optimizer)
    trainer = medley.Trainer(
        model, graph, plan, optimizer, seed=SEED, local=True, keep_gradients=False
    )
    losses = [trainer.step(batch).loss for _ in range(STEPS)]
    return Curve(losses, _values(model, trainer.parameters(), trainer.buffers()))


def _values(
    model: nn.Module, parameters: dict[str, Tensor], buffers: dict[str, Tensor]
) -> dict[str, Tensor]:
    state = dict(model.named_parameters()) | dict(model.named_buffers()) | parameters | buffers
    return {name: x.detach().clone() for name, x in state.items()}


def _difference(found: Curve, expected: Curve) -> float:
    """Returns the largest difference of a loss or a value, relative to the value's largest."""
    pairs = [(torch.tensor(found.losses), torch.tensor(expected.losses))]
    pairs += [(found.values[name], wanted) for name, wanted in expected.values.items()]
    worst = 0.0
    for a, b in pairs:
        if not b.numel():
            continue
        difference = (a.double() - b.double()).abs().max().item()
        if not difference <= FLOOR:  # true for NaN too
            worst = max(worst, difference / max(b.double().abs().max().item(), 1e-30))
    return worst
