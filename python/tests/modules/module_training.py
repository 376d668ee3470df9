"""One module in parallel with PyTorch: captured and checked once, then trained for two steps under
every plan."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from module_case import ROWS, Case
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
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 10 Gbit/s, latency: 5 us}
devices:
  half: {based_on: CPU, speed: 0.5}
""")
DEVICES = ["fast/0/0", "slow/0/0"]
LENGTHS = [4, 3]
MICROBATCHES = [[2, 2], [1, 2]]
STEPS = 2
RELATIVE, FLOOR = 1e-10, 1e-14
SEED = 3


@contextlib.contextmanager
def small_and_precise() -> Iterator[None]:
    """New tensors are float64, and ops take one thread: they are too small for more."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


def outcome(case: Case) -> dict[str, str]:
    """Returns the outcome of a case by plan: "", or the sentence that refused it; only "capture" if
    capture refused it. Raises AssertionError if a value differs."""
    with small_and_precise(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, batch = _made(case)
        try:
            graph = medley.capture(model, batch, "Net")
        except CaptureError as error:
            return {"capture": str(error)}
        assert not graph.unchecked, f"not checked: {graph.unchecked}"
        expected = _eager(case)
        return {name: _trained(plan, model, graph, batch, expected) for name, plan in PLANS.items()}


def _made(case: Case) -> tuple[nn.Module, Any]:
    torch.manual_seed(SEED)
    return case.make()


def _batches(batch: Any) -> Iterator[Any]:
    """Yields the batch of each step: other values, the rows in another order."""

    def changed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        rows = value.roll(1, 0) if value.dim() and value.shape[0] == ROWS else value
        return rows * 0.9 if rows.is_floating_point() else rows

    for _ in range(STEPS):
        following = _each(changed, batch)
        yield batch
        batch = following


def _each(change: Callable[[Any], Any], batch: Any) -> Any:
    """Returns the batch with its tensors changed, which a model may change in place later."""
    if isinstance(batch, Mapping):
        return {name: _each(change, value) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_each(change, value) for value in batch)
    return change(batch)


class Expected:
    """The results of PyTorch: the loss of each step, parameters and buffers after the last."""

    def __init__(self, model: nn.Module, losses: list[float]) -> None:
        self.losses = losses
        self.parameters = {name: p.detach() for name, p in model.named_parameters()}
        self.buffers = dict(model.named_buffers())


def _eager(case: Case) -> Expected:
    model, batch = _made(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    losses = []
    for step, each in enumerate(_batches(batch)):
        optimizer.zero_grad()
        custom_ops.set_rng(SEED, step)
        with substitute(model) if case.seeded else contextlib.nullcontext():
            if isinstance(each, Mapping):
                found = model(**each)
            else:
                found = model(each) if isinstance(each, Tensor) else model(*each)
            loss = loss_of(found)
            loss = loss[0] / loss[1] if isinstance(loss, tuple) else loss
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return Expected(model, losses)


# --- plans ----------------------------------------------------------------------------------------


def _plan(graph: medley.Graph, microbatches: list[dict[str, Any]], **stage: Any) -> medley.Plan:
    mesh = {"axes": ["x"], "shape": [2], "devices": DEVICES}
    pipeline = {"microbatches": microbatches, "stages": [{"mesh": mesh, **stage}]}
    return medley.Plan.from_dict(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "parts": [{"name": "part", "shares": [2, 1]}],
            "pipelines": [pipeline],
        }
    )


def _by_rows(graph: medley.Graph) -> medley.Plan:
    return _plan(graph, [{"rows": ROWS, "lengths": LENGTHS}])


def _hap(graph: medley.Graph) -> medley.Plan:
    return medley.plan(graph, CLUSTER, "hap", global_batch=ROWS, optimizer=OPTIMIZER)


def _zero(graph: medley.Graph) -> medley.Plan:
    updates = {name: f"S({dims[0]}, part)" for name, dims in _dims(graph) if dims}
    return _plan(graph, [{"rows": ROWS, "lengths": LENGTHS}], updates=updates)


def _tensor(graph: medley.Graph) -> medley.Plan:
    placements = {
        name: f"S({dims[i % len(dims)]}, part)"
        for i, (name, dims) in enumerate(_dims(graph))
        if dims
    }
    return _plan(graph, [{"rows": ROWS}], placements=placements)


def _in_microbatches(graph: medley.Graph) -> medley.Plan:
    return _plan(graph, [{"rows": sum(rows), "lengths": rows} for rows in MICROBATCHES])


def _dims(graph: medley.Graph) -> Iterator[tuple[str, list[int]]]:
    """Yields the dims of each parameter that can be cut."""
    for kind, name, _, shape in graph.core.inputs:
        if kind == "parameter":
            sizes = shape.strip("[]").split(", ")
            yield name, [dim for dim, size in enumerate(sizes) if size not in ("", "1")]


PLANS: dict[str, Callable[[medley.Graph], medley.Plan]] = {
    "rows": _by_rows,
    "hap": _hap,
    "zero": _zero,
    "tensor": _tensor,
    "micro": _in_microbatches,
}
OPTIMIZER = medley.SGD(lr=0.05, momentum=0.9)


def _trained(
    make: Callable[[medley.Graph], medley.Plan],
    model: nn.Module,
    graph: medley.Graph,
    batch: Any,
    expected: Expected,
) -> str:
    """Trains under a plan. Returns the sentence that refuses it, or ""."""
    try:
        plan = medley.plan(graph, CLUSTER, plan=make(graph))
        trainer = medley.Trainer(
            model, graph, plan, OPTIMIZER, seed=SEED, local=True, keep_gradients=False
        )
    except ValueError as error:
        return str(error) or "refused without a word"
    losses = [trainer.step(each).loss for each in _batches(batch)]
    for step, (found, wanted) in enumerate(zip(losses, expected.losses, strict=True)):
        assert abs(found - wanted) <= RELATIVE * max(1e-3, abs(wanted)), (
            f"loss of step {step}: {found}, PyTorch has {wanted}"
        )
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    held |= trainer.parameters() | trainer.buffers()  # with frozen parameters that forward changes
    for name, wanted in (expected.parameters | expected.buffers).items():
        _compare(name, held[name].detach(), wanted)
    return ""


def _compare(name: str, found: Tensor, wanted: Tensor) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, name
    if wanted.numel():
        difference = (found.double() - wanted.double()).abs().max().item()
        bound = max(RELATIVE * wanted.double().abs().max().item(), FLOOR)
        assert difference <= bound, f"{name}: differs by {difference}, bound {bound}"
